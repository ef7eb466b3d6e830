"""Fixtures for the tests of the course: see tests/helpers/shared_fixtures.py."""

from shared_fixtures import *  # noqa: F403
