"""Trusted, pure: from the events that ranks report to a proof of who waits for whom."""
