"""What the tests of hostile submissions share with those of the engine."""

from sandboxed import needs_sandbox

__all__ = ["needs_sandbox"]
