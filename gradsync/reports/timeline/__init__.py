"""Draw the collectives of a run over time, and write them for other viewers."""
