"""How many submissions are graded at a time."""

import pytest

from gradsync.grading.processes import jobs

GIB = 2**30


@pytest.fixture
def machine(monkeypatch):
    """Set the cores and the free memory in GiB."""

    def set_machine(cores, memory):
        monkeypatch.setattr(jobs, "available_cores", lambda: cores)
        monkeypatch.setattr(jobs, "_free_memory", lambda: memory * GIB)

    return set_machine


@pytest.mark.parametrize(
    ("cores", "memory", "submissions", "expected"),
    [(2, 64, 100, 2), (16, 128, 100, 16), (16, 128, 3, 3), (16, 6, 100, 4), (16, 0.5, 100, 1)],
)
def test_the_number_of_jobs_is_limited_by_cores_memory_and_the_class(
    machine, cores, memory, submissions, expected
):
    machine(cores, memory)

    assert jobs.default_jobs(submissions) == expected


def test_a_machine_of_unknown_memory_is_limited_by_its_cores(machine):
    machine(4, float("inf"))

    assert jobs.default_jobs(100) == 4


@pytest.mark.parametrize(("count", "expected"), [(1, None), (2, 2), (4, 1), (16, 1)])
def test_several_submissions_share_the_cores(machine, count, expected):
    machine(4, 64)

    assert jobs.parallel_tests(count) == expected
