"""Fixtures that the tests of hostile submissions share with the tests of the engine."""

from sandboxed import needs_sandbox

__all__ = ["needs_sandbox"]
