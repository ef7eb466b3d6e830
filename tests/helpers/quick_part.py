"""Which cases of a long list `make test` tries; the others are left to `make test-all`."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from random import Random

import pytest


@cache
def commit() -> str:
    """Return the checkout's commit, which the quick part is drawn by: another one, other cases."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"  # a copy without git's folder


def drawn(cases: Mapping[str, Collection[str]], late: Collection[str] = ()) -> list[object]:
    """Return the cases as parameters, those outside the quick part marked as slow.

    Args:
        cases: by name, what a case touches: an exercise, a code. Everything that is touched by any
            case is touched by one of the quick part.
        late: cases that take long, which are drawn only if no other touches the same.
    """
    names = list(cases)
    Random(commit()).shuffle(names)
    names.sort(key=lambda name: name in late)  # stable
    touched: set[str] = set()
    quick = set()
    for name in names:
        if not touched.issuperset(cases[name]):
            touched.update(cases[name])
            quick.add(name)
    slow = pytest.mark.slow
    return [pytest.param(name, id=name, marks=() if name in quick else slow) for name in cases]
