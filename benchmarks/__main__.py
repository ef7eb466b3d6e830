"""`make bench`: measure everything, print a table, and fail where a figure is not reached.

`python -m benchmarks start deadlock` measures those two alone.
"""

from __future__ import annotations

import importlib
import sys

from rich.console import Console
from rich.table import Table

from benchmarks.figure import Figure

PARTS = (
    "start",
    "deadlock",
    "loading",
    "scaling",
    "suite",
    "buckets",
    "ring",
    "sharding",
    "production",
    "notebooks",
    "nbgrading",
)


def main(parts: list[str]) -> int:
    """Return how many figures are not reached."""
    figures: list[Figure] = []
    for part in parts or PARTS:
        print(f"measuring: {part} ...", flush=True)
        figures += importlib.import_module(f"benchmarks.{part}").figures()
    table = Table("what", "ours", "instead", "ratio", "wanted", "")
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.3g}"
        mark = "[green]✓[/]" if figure.holds else "[red]✗[/]"
        table.add_row(figure.what, figure.ours, figure.instead, ratio, figure.wanted, mark)
    Console(width=max(Console().width, 120)).print(table)
    return sum(not figure.holds for figure in figures)


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
