"""The source notebooks, made from the solutions, the exercises and the guides."""
