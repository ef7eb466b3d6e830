"""Endless recursions are reported as such, however the rank ends."""

import resource
import sys

import pytest
import torch
from processes import linux_only
from torch import nn

from gradsync import RankFailure, run_ranks


def in_python():
    def descend(depth):
        return 1 + descend(depth + 1)

    descend(0)


def in_turns():
    def even(number):
        return odd(number + 1)

    def odd(number):
        return even(number + 1)

    even(0)


def in_an_attribute():
    class Config:
        def __getattr__(self, name):
            return self.missing

    return Config().rate


def in_a_module():
    class Model(nn.Module):
        def forward(self, inputs):
            return self(inputs)

    Model()(torch.ones(1))


def fails(function, **options):
    with pytest.raises(RankFailure) as caught:
        run_ranks(function, 2, **options)
    return caught.value.observation.failure


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (in_python, ["descend"]),
        (in_turns, ["even", "odd"]),
        (in_an_attribute, ["__getattr__"]),
        (in_a_module, ["forward"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_recursion_error_names_the_function(function, names):
    failure = fails(function)

    assert (failure.status, failure.diagnosis.code) == ("error", "exception")
    assert "RecursionError" in failure.diagnosis.explanation
    assert any(
        f" {name} calls itself in an endless recursion" in str(failure.diagnosis) for name in names
    )
    assert failure.diagnosis.where.startswith("test_recursion.py:")


def test_a_traceback_shows_repeated_frames_once():
    lines = fails(in_python).traceback.splitlines()

    assert len(lines) == 2
    assert lines[0].endswith("in descend: return 1 + descend(depth + 1)")
    assert lines[1] == "(repeated 19 more times)"


@linux_only
def test_a_stack_overflow_is_reported_and_blocks_nothing():
    def overflow():
        sys.setrecursionlimit(10**6)
        in_a_module()

    failure = fails(overflow, timeout=60)

    status, code, said = (
        ("error", "exception", "RecursionError")
        if sys.version_info >= (3, 12)  # limits calls of C functions, even if the limit is raised
        else ("crashed", "rank-crashed", "SIGSEGV")
    )
    assert (failure.status, failure.diagnosis.code) == (status, code)
    assert said in failure.diagnosis.explanation
    assert "forward calls itself in an endless recursion" in failure.diagnosis.explanation
    assert failure.diagnosis.where.startswith("test_recursion.py:")


@linux_only
def test_a_stack_is_limited_even_if_the_users_is_not():
    before = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (before[1], before[1]))
    try:
        soft = run_ranks(lambda: resource.getrlimit(resource.RLIMIT_STACK)[0], 1, launcher="spawn")
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, before)

    assert soft[0] == 8 * 2**20


@linux_only
def test_a_recursion_that_takes_all_memory_is_reported_as_a_recursion(needs_sandbox):
    def descend_for_ever():
        sys.setrecursionlimit(10**9)
        in_python()

    failure = fails(descend_for_ever, launcher="sandbox", timeout=60)

    assert (failure.status, failure.diagnosis.code) == ("crashed", "rank-crashed")
    assert "GiB of memory" in failure.diagnosis.explanation
    assert "descend calls itself in an endless recursion" in failure.diagnosis.explanation


def test_the_stacks_that_a_rank_writes_are_limited(folder):
    def flood():
        import os
        import stat

        for number in range(3, 40):
            try:
                if stat.S_ISSOCK(os.fstat(number).st_mode):
                    os.set_blocking(number, False)
                    for _ in range(1000):
                        os.write(number, b'  File "x.py", line 1 in f\n' * 100)
            except OSError:
                continue
        os._exit(3)

    failure = fails(flood, timeout=20)

    assert failure.status == "crashed"
