"""The caller of a collective: the user's functions, or the test itself."""

import textwrap

import pytest
import torch
import torch.distributed as dist
from deadlock_story import Story

from gradsync import RankFailure, run_ranks
from gradsync.ranks import get_launcher
from gradsync.ranks.deadlocks.explanations import ADVICE
from gradsync.ranks.host.supervise import observe
from gradsync.ranks.task import Task
from support.probes.bucket_marks import mark

TRAINER = """
    import torch
    import torch.distributed as dist

    def train(skips=False):
        for _ in range(1):
            evaluate(skips)

    def evaluate(skips):
        total(2, skips)

    def total(depth, skips):
        if depth:
            return total(depth - 1, skips)
        if not skips:
            dist.all_reduce(torch.ones(1))

    def call(function):
        return function()

    def hook(weight):
        weight.register_post_accumulate_grad_hook(dist.all_reduce)
"""
LINE = 1 + TRAINER.strip().splitlines().index("            dist.all_reduce(torch.ones(1))")


@pytest.fixture
def run(tmp_path):
    """Return the observation of a function that gets a learner's file, like a test's probe."""
    path = tmp_path / "template_trainer.py"
    path.write_text(textwrap.dedent(TRAINER).strip())

    def run(probe, world_size=2, **inputs):
        modules = {"trainer": path}
        task = Task(probe, world_size, inputs=inputs, modules=modules, roots=(tmp_path,))
        return observe(task, get_launcher())

    return run


def test_a_deadlock_names_the_functions_that_lead_to_it(run):
    def probe(rank, trainer):
        trainer.train(rank == 1)

    diagnosis = run(probe).failure.diagnosis

    place = f"template_trainer.py:{LINE} (train -> evaluate -> total)"
    assert diagnosis.explanation.endswith(f"Rank 0 is waiting in it, at {place}. {ADVICE}")
    assert diagnosis.where == f"template_trainer.py:{LINE}"


def test_mismatched_calls_name_the_functions_that_lead_to_them(run):
    def disagree(rank, trainer):
        trainer.call(dist.barrier) if rank else trainer.train()

    failure = run(disagree).failure

    assert "(train -> evaluate -> total)" in failure.diagnosis.explanation
    assert "Rank 1 calls barrier #1, at template_trainer.py" in failure.diagnosis.explanation


def test_a_collective_of_the_test_is_named_as_such(run):
    def probe(rank, trainer):
        trainer.train()
        if rank:
            dist.barrier()

    seen = run(probe)

    text = seen.failure.diagnosis.explanation
    assert text.startswith("Rank 0 returned without calling the test's own barrier #2.")
    assert text.endswith("Rank 1 is waiting in it.")
    assert seen.failure.diagnosis.where is None
    assert [call.by_test for call in seen.collectives(1)] == [False, True]


@pytest.mark.parametrize("own", [mark, None], ids=["of the probes' folder", "of the test's file"])
def test_a_callback_of_the_test_belongs_to_the_test(run, own):
    def probe(trainer, own):
        group = dist.new_group()
        trainer.call(lambda: own(group, 1) if own else dist.all_reduce(torch.ones(1)))

    last = run(probe, own=own).collectives(0)[-1]

    assert (last.op, last.by_test, last.where, last.callers) == ("all_reduce", True, None, ())


def test_a_hook_of_the_user_does_not_belong_to_the_test(run):
    def probe(trainer):
        weight = torch.ones(1, requires_grad=True)
        trainer.hook(weight)
        weight.sum().backward()

    [call] = run(probe).collectives(0)

    assert not call.by_test


def test_a_deadlock_between_the_test_and_the_user_names_the_users_line(run):
    def probe(rank, trainer):
        if rank:
            trainer.train()
        else:
            dist.barrier()

    diagnosis = run(probe).failure.diagnosis

    assert "the test's own barrier #1" in diagnosis.explanation
    assert diagnosis.where == f"template_trainer.py:{LINE}"


def test_without_files_under_test_all_code_belongs_to_the_user():
    def function(rank):
        def inner():
            dist.barrier()

        if rank:
            inner()

    with pytest.raises(
        RankFailure, match=r"Rank 1 is waiting in it, at \S+:\d+ \(function -> inner\)"
    ):
        run_ranks(function, 2)


def test_ranks_with_different_callers_of_a_line_are_listed_separately():
    story = Story(3)
    story.waits_in(0, where="a.py:1", callers=("train", "evaluate"))
    story.waits_in(1, where="a.py:1", callers=("main", "evaluate"))
    story.returns(2)

    text = story.diagnosis().explanation

    assert "Rank 0 is waiting in it, at a.py:1 (train -> evaluate)." in text
    assert "Rank 1 is waiting in it, at a.py:1 (main -> evaluate)." in text


def test_the_command_that_starts_the_ranks_is_no_line_of_the_users():
    (call,) = run_ranks(dist.barrier, 2).collectives(0)

    assert (call.where, call.callers) == (None, ())
