"""A function on N ranks: inputs, return values and output."""

import functools
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from gradsync import RankFailure, run_ranks


def helper_of_this_module(number):
    return number + 1


def sum_over_ranks(rank, scale=1):
    tensor = torch.tensor([float(rank * scale)])
    dist.all_reduce(tensor)
    return tensor.item()


@pytest.mark.parametrize("launcher", ["fork", "spawn"])
def test_proxies_of_a_manager_work_on_the_ranks(launcher):
    def function(rank, sums):
        sums[rank] = sum_over_ranks(rank)

    with multiprocessing.Manager() as manager:
        sums = manager.dict()
        run_ranks(function, 2, launcher=launcher, sums=sums)

        assert dict(sums) == {0: 1.0, 1: 1.0}


def test_ranks_start_although_the_callers_standard_streams_are_closed(tmp_path):
    (tmp_path / "program.py").write_text(
        "from gradsync import run_ranks\n"
        "from gradsync.ranks import get_launcher\n"
        "get_launcher().warm_up()\n"  # opens sockets before anything else is opened
        "open('seen', 'w').write(str(list(run_ranks(lambda rank: rank, 2))))\n"
    )
    closed = ["sh", "-c", '"$0" program.py <&- >&- 2>&-', sys.executable]

    done = subprocess.run(closed, cwd=tmp_path, check=False, timeout=100)

    assert (done.returncode, (tmp_path / "seen").read_text()) == (0, "[0, 1]")


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_ranks_are_a_group_and_their_values_are_in_order(world_size):
    seen = run_ranks(lambda rank, world_size: (rank, world_size, sum_over_ranks(rank)), world_size)

    total = sum(range(world_size))
    assert list(seen) == [(rank, world_size, total) for rank in range(world_size)]


def test_a_value_of_many_parts_returns_as_it_was():
    def make():
        odd = b"\x00bytes"  # the tensors after it must still be aligned
        array = np.arange(6, dtype=">i2").reshape(2, 3)
        plain = {(1, "b"): ({3}, frozenset({"x"})), 7: odd}
        return plain, torch.arange(6).reshape(2, 3).T[1:], torch.nn.Parameter(torch.ones(2)), array

    plain, view, parameter, array = run_ranks(make, 1, process_group=False)[0]

    assert plain == make()[0]
    assert torch.equal(view, make()[1])
    assert type(parameter) is torch.Tensor
    np.testing.assert_array_equal(array, make()[3], strict=True)


def test_inputs_are_given_by_name():
    seen = run_ranks(
        lambda scale, rank, offset: scale * rank + offset, 2, process_group=False, scale=3, offset=1
    )

    assert list(seen) == [1, 4]


def test_an_input_of_megabytes_arrives_complete():
    data = torch.arange(2_000_000)

    seen = run_ranks(lambda data: int(data.sum()), 2, process_group=False, data=data)

    assert list(seen) == [int(data.sum())] * 2


def test_an_answer_of_megabytes_arrives_complete():
    seen = run_ranks(lambda rank: torch.full((2_000_000,), rank), 2, process_group=False)

    assert torch.equal(seen[1], torch.full((2_000_000,), 1))


def test_a_closure_can_be_sent():
    captured = [1, 2]

    seen = run_ranks(lambda rank: captured[rank], 2, process_group=False)

    assert list(seen) == captured


def test_helpers_of_the_functions_module_can_be_sent():
    seen = run_ranks(lambda rank: 10 * helper_of_this_module(rank), 2, process_group=False)

    assert list(seen) == [10, 20]


def test_a_partial_can_be_sent_with_its_module():
    seen = run_ranks(functools.partial(helper_of_this_module, number=4), 1, process_group=False)

    assert seen[0] == 5


def test_a_function_of_an_installed_library_is_imported_not_copied():
    seen = run_ranks(dist.get_world_size, 2)

    assert list(seen) == [2, 2]


def test_a_default_argument_may_be_omitted():
    seen = run_ranks(lambda rank, scale=10: rank * scale, 2, process_group=False)

    assert list(seen) == [0, 10]


def test_no_group_is_started_unless_wanted():
    seen = run_ranks(dist.is_initialized, 2, process_group=False)

    assert list(seen) == [False, False]


def test_two_runs_do_not_interfere():
    def leave_a_trace():
        before = hasattr(torch, "a_trace")
        torch.a_trace = True
        return before

    run_ranks(leave_a_trace, 2, process_group=False)
    seen = run_ranks(leave_a_trace, 2, process_group=False)

    assert list(seen) == [False, False]


def test_threads_may_run_ranks_at_the_same_time():
    found = {}

    def run(number):
        found[number] = list(run_ranks(sum_over_ranks, 2, scale=number))

    threads = [threading.Thread(target=run, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {number: [number, number] for number in range(4)}


@pytest.mark.parametrize("launcher", ["fork", "spawn"])
def test_random_states_differ_from_rank_to_rank(launcher):
    def draw():
        return random.random(), np.random.random(), torch.rand(()).item()

    one, other = run_ranks(draw, 2, process_group=False, launcher=launcher)

    assert not set(one) & set(other)


@pytest.mark.parametrize("launcher", ["fork", "spawn"])
def test_ranks_have_the_callers_folder_path_and_environment(launcher, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADSYNC_TEST", "now")
    monkeypatch.syspath_prepend(str(tmp_path))

    def look():
        return str(Path.cwd()), os.environ.get("GRADSYNC_TEST"), sys.path[0]

    seen = run_ranks(look, 1, process_group=False, launcher=launcher)

    assert seen[0] == (str(tmp_path), "now", str(tmp_path))


def test_a_file_named_like_a_module_is_not_imported(monkeypatch, tmp_path):
    (tmp_path / "random.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)

    seen = run_ranks(lambda rank: rank, 1, process_group=False, launcher="spawn")

    assert list(seen) == [0]


def test_output_is_shown_with_the_rank(capsys):
    def speak(rank):
        print(f"hello from {rank}")
        print("and more", file=sys.stderr)

    seen = run_ranks(speak, 2, process_group=False)

    assert seen.output == ("hello from 0\nand more\n", "hello from 1\nand more\n")
    assert "[rank 1] hello from 1\n[rank 1] and more\n" in capsys.readouterr().out


def test_output_before_a_rank_died_is_shown():
    def speak():
        print("last words")
        os._exit(1)

    with pytest.raises(RankFailure) as caught:
        run_ranks(speak, 1, process_group=False)

    assert caught.value.observation.output == ("last words\n",)


def test_output_beyond_the_limit_is_cut():
    seen = run_ranks(lambda: print("x" * 1_000_000), 1, process_group=False)

    assert len(seen.output[0]) == 2**18


def test_a_rank_may_close_its_own_output():
    def close(rank):
        sys.stdout.close()
        return rank

    seen = run_ranks(close, 1, process_group=False)

    assert list(seen) == [0]


def test_temporary_files_of_a_rank_are_removed():
    seen = run_ranks(tempfile.mkdtemp, 1, process_group=False)

    assert not Path(seen[0]).exists()


def test_a_child_that_returns_from_the_function_does_not_answer():
    def fork_and_return(rank):
        return "child" if os.fork() == 0 else rank

    seen = run_ranks(fork_and_return, 2, process_group=False)

    assert list(seen) == [0, 1]
