"""What it costs to add ranks: measure, fit a model, predict, and simulate more ranks.

`measure` and `nccl_tests` give samples of all-reduces, `cost_model` fits them, `simulation`
computes the time of a training step on any number of ranks, `study` puts these together.
"""
