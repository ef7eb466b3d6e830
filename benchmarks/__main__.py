"""`make bench`: measure all figures, print a table, and fail if a figure misses its target.

`python -m benchmarks start deadlock` measures only those two parts.
"""

from __future__ import annotations

import importlib
import sys

from rich.console import Console
from rich.table import Table

from benchmarks.figure import Figure

PARTS = (
    "start",
    "commands",
    "tricks",
    "engines",
    "torchrun",
    "peers",
    "deadlock",
    "loading",
    "scaling",
    "predictions",
    "suite",
    "buckets",
    "ring",
    "sharding",
    "fully_sharded",
    "production",
    "notebooks",
    "nbgrading",
    "classes",
    "review",
)

MARKS = {True: "[green]✓[/]", False: "[red]✗[/]", None: "[yellow]?[/]"}


def main(parts: list[str]) -> int:
    """Measure figures and print their table; return the number of missed targets."""
    figures: list[Figure] = []
    for part in parts or PARTS:
        print(f"measuring: {part} ...", flush=True)
        figures += importlib.import_module(f"benchmarks.{part}").figures()
    table = Table("what", "gradsync", "alternative", "ratio", "target", "")
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.3g}"
        mark = MARKS[figure.reached]
        table.add_row(figure.what, figure.ours, figure.alternative, ratio, figure.target, mark)
    Console(width=max(Console().width, 120)).print(table)
    missing = sum(figure.reached is None for figure in figures)
    if missing:
        print(f"{missing} of {len(figures)} figures were not measured: see above what they need.")
    return sum(figure.reached is False for figure in figures)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
