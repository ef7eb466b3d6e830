"""Shared by both sides: events, values and frames, read as hostile input; the user's files."""
