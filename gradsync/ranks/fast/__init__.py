"""Tricks that save imports: `dynamo` defers torch's compiler, `late_imports` shares other imports.

Everything works without them, only slower. `GRADSYNC_SLOW=all` in the environment turns both off,
and `GRADSYNC_SLOW=dynamo` this one. `python -m benchmarks tricks` measures the gain of each.
"""

from __future__ import annotations

import os

SWITCH = "GRADSYNC_SLOW"
TRICKS = ("dynamo", "late_imports")
_OFF = os.environ.get(SWITCH, "").split(",")  # read once: a rank's own environment has no influence


def uses(trick: str) -> bool:
    """Return whether a trick is used in this process."""
    return not {"all", trick} & set(_OFF)
