"""`%%ranks` and `%ranks`: cells of a notebook on N ranks."""
