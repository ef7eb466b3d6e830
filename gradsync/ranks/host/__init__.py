"""Trusted side: start the ranks of a run, supervise them, and end them."""
