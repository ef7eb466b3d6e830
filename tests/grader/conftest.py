"""Fixtures for the tests of the grader: see tests/helpers/shared_fixtures.py."""

from shared_fixtures import *  # noqa: F403
