"""Follow a script, and record its calls in the order in which they run, with their conditions."""
