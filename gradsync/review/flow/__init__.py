"""What a script does: its calls in the order in which they run, with their conditions."""
