"""The figures that the README states, each beside what a user would take instead."""
