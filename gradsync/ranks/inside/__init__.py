"""Untrusted side: the code that runs in a rank, beside a learner's code."""
