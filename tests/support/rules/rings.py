"""Mistakes in a ring all-reduce, recognised by the elements that are wrong afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradsync.records import Diagnosis, Observation
from gradsync.testing.values import close

GUIDE = "The ring"


def some_chunks_wrong(seen: Observation, expected: Any) -> Diagnosis | None:
    """Report the positions of the wrong elements, which show the chunk or step that is wrong."""
    for rank, values in enumerate(seen):
        for value, wanted in zip(values, expected[rank], strict=True):
            flat, right = np.asarray(value).reshape(-1), np.asarray(wanted).reshape(-1)
            if flat.shape != right.shape or close(flat, right):
                continue
            scale = 1e-5 * np.abs(right).max()
            [wrong] = np.nonzero(~(np.abs(flat - right) <= scale))
            ranks = tuple(r for r in range(len(seen)) if not close(seen[r], expected[r]))
            if len(wrong) == len(flat):
                text = (
                    f"On rank {rank} of {len(seen)}, all {len(flat)} elements are wrong. Check "
                    "both passes: the first adds each chunk that arrives, the second copies it."
                )
                return Diagnosis("wrong-chunk", ranks, text, guide=GUIDE)
            text = (
                f"On rank {rank} of {len(seen)}, {len(wrong)} of {len(flat)} elements are not the "
                f"sum over the ranks: the first is at position {wrong[0] if len(wrong) else 0}, "
                f"the last at {wrong[-1] if len(wrong) else 0}. Find the chunk that they belong "
                "to, and the step in which it should have been added or copied."
            )
            return Diagnosis("wrong-chunk", ranks, text, guide=GUIDE)
    return None
