"""Predict the cost of training on more ranks, from measurements on a few ranks.

`network` and `compute` are the models of cost, `fitting` fits them to measurements. `strategies`
computes the time of a training step from both, and `batches` the smallest batch size with which
more ranks are faster. `measuring` measures this machine, `nccl_tests` reads measurements of a
cluster, and `study` combines all results for `gradsync scale`.
"""
