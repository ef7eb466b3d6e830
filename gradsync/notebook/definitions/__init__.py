"""Pure: the file that the cells of a notebook amount to, and where each of its lines stands."""
