"""Choose the cases of a long list that `make test` tries; `make test-all` tries all of them.

Of some lists, whose cases are costly and tested in other ways too, `make test-all` tries one half.
With ALL_CASES=1 it tries all.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from random import Random

import pytest


@cache
def commit() -> str:
    """Return the checkout's commit, the seed of the choice: each commit tries different cases."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"  # a copy without git's folder


def drawn(
    cases: Mapping[str, Collection[str]], late: Collection[str] = (), *, half: bool = False
) -> list[object]:
    """Return the cases as parameters, those outside the quick part marked as slow.

    Args:
        cases: by a case's name, the exercises or the codes that it tests. The quick part tests
            each of them at least once.
        late: slow cases, which are drawn only if no other case tests the same.
        half: leave out one half of the slow cases.
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
    rest = [name for name in names if name not in quick]
    if half and not os.environ.get("ALL_CASES"):
        rest = rest[::2]
    marks = {**dict.fromkeys(rest, pytest.mark.slow), **dict.fromkeys(quick, ())}
    return [pytest.param(name, id=name, marks=marks[name]) for name in cases if name in marks]
