"""Tricks that make torch, cloudpickle and Python's memory faster.

Everything works without these tricks, only slower. `GRADSYNC_SLOW=all` in the environment turns all
of them off, and `GRADSYNC_SLOW=dynamo,store` these two. `python -m benchmarks tricks` measures the
gain of each trick; a trick that gains less than 5% is removed.
"""

from __future__ import annotations

import os

SWITCH = "GRADSYNC_SLOW"
TRICKS = ("dynamo", "symbolic_shapes", "meta_kernels", "late_imports", "store", "finder", "memory")
_OFF = os.environ.get(SWITCH, "").split(",")  # read once: a rank's own environment has no influence


def uses(trick: str) -> bool:
    """Return whether a trick is used in this process."""
    return not {"all", trick} & set(_OFF)
