"""Trusted, pure: from an exception or an end of a rank to a `Failure`."""
