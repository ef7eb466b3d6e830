"""Checks of the whole project, which take too long for `make test`, and of its English."""
