"""Trusted, pure: from the events that ranks report to a proof of which rank waits for which."""
