"""Fixtures for the tests of the course."""

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
