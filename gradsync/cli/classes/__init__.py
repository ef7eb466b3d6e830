"""Commands on a whole class, and how they show progress."""
