"""Restore the state of a process after a grader has run in it."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np


@contextlib.contextmanager
def undisturbed(tests: Path) -> Iterator[None]:
    """Undo a grader's changes to this process when the block ends: a kernel continues to run.

    Modules of suites, in the folder `tests`, are removed. The number of torch's threads and the
    random states are restored. Other imported modules stay.
    """
    import torch

    threads = torch.get_num_threads()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    before = set(sys.modules)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        for name in set(sys.modules) - before:
            path = getattr(sys.modules[name], "__file__", None)
            if path is not None and Path(path).is_relative_to(tests):
                del sys.modules[name]
