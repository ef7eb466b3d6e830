"""Fixtures for the tests of the grader."""

from shared_fixtures import (
    afresh,
    failure_of,
    folder,
    here,
    needs_sandbox,
    pytest_xdist_make_scheduler,
)

__all__ = [
    "afresh",
    "failure_of",
    "folder",
    "here",
    "needs_sandbox",
    "pytest_xdist_make_scheduler",
]
