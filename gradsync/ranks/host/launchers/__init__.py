"""Trusted: start the processes of ranks: forked from a warm process, or spawned."""
