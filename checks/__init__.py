"""Checks of the complete project that take too long for `make test`, and a check of its English."""
