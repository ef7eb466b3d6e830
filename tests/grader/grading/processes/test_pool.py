"""Processes that do tasks in parallel."""

import os

from pool_tasks import die_once, double_or_die
from processes import children_of

from gradsync.grading.processes.pool import in_pool


def test_if_a_process_dies_only_its_task_is_lost():
    numbers = [1, 13, 2, 13, 3]

    results = sorted(in_pool(double_or_die, numbers, count=2), key=str)
    assert results == [(1, 2), (13, None), (13, None), (2, 4), (3, 6)]


def test_a_task_whose_process_died_is_done_again_alone(tmp_path):
    tasks = [(tmp_path, name) for name in ("mortal", "a", "b", "c")]

    *others, last = [result for _, result in in_pool(die_once, tasks, count=3)]
    assert last == "mortal 0"
    assert {result[0] for result in others} == {"a", "b", "c"}


def test_a_task_is_taken_only_when_a_process_is_free():
    taken = []
    tasks = (taken.append(number) or number for number in range(100))
    results = in_pool(double_or_die, tasks, count=2)
    next(results)
    results.close()

    assert len(taken) <= 4


def test_processes_end_when_the_iterator_is_closed():
    before = set(children_of(os.getpid()))
    results = in_pool(double_or_die, [1, 2, 3, 4], count=2)
    next(results)
    results.close()

    assert set(children_of(os.getpid())) == before


def test_a_file_in_the_current_folder_does_not_replace_a_module(tmp_path, monkeypatch):
    (tmp_path / "typing.py").write_text("raise SystemExit('the wrong file was imported')")
    (tmp_path / "torch.py").write_text("raise SystemExit('the wrong file was imported')")
    monkeypatch.chdir(tmp_path)

    assert list(in_pool(double_or_die, [1], count=1)) == [(1, 2)]
