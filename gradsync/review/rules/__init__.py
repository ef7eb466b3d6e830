"""Rules: each finds one kind of mistake in a program."""
