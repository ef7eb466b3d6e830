"""Trusted, pure: describe a rank's exception, or the end of its process, as a `Failure`."""
