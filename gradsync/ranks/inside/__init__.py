"""Untrusted side: what runs in a rank, beside a learner's code."""
