"""Pure functions that convert a notebook's cells to a file, with the origin of each line."""
