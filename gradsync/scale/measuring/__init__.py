"""Measure this machine: `machine` starts ranks, `on_ranks` and `training` run on them."""
