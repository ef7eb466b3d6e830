"""Predict the cost of training on more ranks, from measurements on a few ranks.

`costs` has the models of compute and all-reduce, and `fitting` fits them to measurements.
`strategies` computes the time of a training step from both, and the smallest batch size with which
more ranks are faster. `measuring` measures this machine, with the functions of `on_ranks`, and
`nccl_tests` reads measurements of a cluster. `study` combines all results for `gradsync scale`.
"""
