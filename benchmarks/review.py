"""Review a script of 1,000 lines: `gradsync review`, ruff, flake8, torchfix."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.figure import Figure, in_turns, median_seconds, seconds, shown

LINES = 1_000
SAMPLES = Path(__file__).parents[1] / "tests" / "grader" / "review" / "samples" / "right"
TEMPLATE = Path(__file__).parents[1] / "solutions" / "phase1" / "template_trainer.py"


def figures() -> Iterator[Figure]:
    """Measure complete commands, and the review of a solution inside a running command."""
    from gradsync.review import review

    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(long_script())
        ours, ruff = in_turns(
            lambda: _run("gradsync", "review", str(script)),
            lambda: _run("ruff", "check", "--isolated", "--no-cache", str(script)),
            times=5,
        )
        others = [
            f"{name}: {shown(_run(name, *options, str(script)))}"
            for name, options in (("flake8", ["--isolated"]), ("torchfix", []))
            if importlib.util.find_spec(name)  # torchfix may be missing
        ]
    yield Figure(
        f"review a script of {LINES:,} lines",
        f"gradsync review: {shown(ours)}",
        ", ".join([f"ruff check: {shown(ruff)}", *others]),
        ruff / ours,
        "1 s",
        ours <= 1,
    )
    inside = median_seconds(lambda: review([TEMPLATE]), 5)
    yield Figure(
        "review a solution in `gradsync check`", shown(inside), "", None, "50 ms", inside <= 0.05
    )


def long_script() -> str:
    """Return a text of complete sample programs that has at least `LINES` lines."""
    samples = [path.read_text(encoding="utf-8") for path in sorted(SAMPLES.glob("*.py"))]
    text = ""
    while samples and text.count("\n") < LINES:
        text += samples.pop(0)
    return text


def _run(module: str, *arguments: str) -> float:
    command: Sequence[str] = [sys.executable, "-m", module, *arguments]
    return seconds(lambda: subprocess.run(command, check=False, capture_output=True))
