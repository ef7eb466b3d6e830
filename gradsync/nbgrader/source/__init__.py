"""Make the source notebooks from the solutions, the exercises and the guides."""
