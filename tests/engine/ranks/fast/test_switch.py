"""One switch turns off all optimisations."""

import os
import subprocess
import sys

import pytest

from gradsync.ranks.fast import SWITCH, TRICKS

PROGRAM = """
from gradsync import run_ranks

def look():
    import sys
    import torch
    torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
    return "torch._dynamo.eval_frame" in sys.modules

print("imported" if run_ranks(look, 1)[0] else "deferred")
"""


@pytest.mark.parametrize(
    ("off", "compiler"),
    [
        ("", "deferred"),
        ("all", "imported"),
        pytest.param("late_imports,dynamo", "imported", marks=pytest.mark.slow),
    ],
)
def test_tricks_are_turned_off_in_the_ranks_too(off, compiler):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, SWITCH: off},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split()[-1] == compiler


def test_every_trick_can_be_turned_off_by_its_name(monkeypatch):
    from gradsync.ranks import fast

    monkeypatch.setattr(fast, "_OFF", ["late_imports"])

    assert [trick for trick in TRICKS if not fast.uses(trick)] == ["late_imports"]
