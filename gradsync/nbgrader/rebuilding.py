"""Rebuild a submitted notebook from its text and the cells as they were released.

A learner can write anything into a notebook's file: metadata that stops nbgrader for the whole
class, grading cells that check nothing, markdown with scripts that would run in the grader's
browser. Only the text of code cells is kept unchanged. Markdown that is not part of the course is
shown as text. These functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nbformat import NotebookNode, v4

CELL_ID = re.compile(r"[\w-]{1,64}", re.ASCII)
TICKS = re.compile("`+")


@dataclass(frozen=True, slots=True)
class Released:
    """A released cell, from the gradebook."""

    cell_type: str
    source: str
    about: Mapping[str, Any]  # its metadata for nbgrader

    @property
    def is_editable(self) -> bool:
        return bool(self.about["solution"])

    @property
    def is_tested(self) -> bool:
        """Whether tests decide its points, not a person."""
        return bool(self.about["grade"]) and not self.is_editable and self.cell_type == "code"


Notebook = Mapping[str, Released]  # by the cell's name, in order


def rebuilt(
    cells: Iterable[Mapping[str, Any]], released: Notebook, texts: Collection[str]
) -> tuple[NotebookNode, list[str]]:
    """Return the rebuilt notebook, and notes on changes that a learner may not make.

    Args:
        cells: the cells of the submitted notebook, as read by nbformat.
        released: the released cells. Deleted grading cells are added at the end.
        texts: the markdown cells of the course's source notebook.
    """
    made: list[NotebookNode] = []
    notes: list[str] = []
    seen: set[str] = set()
    for cell in reversed(list(cells)):  # of several copies use the last, as nbgrader does
        name = _name(cell)
        known = released.get(name) if name not in seen else None
        if known is None:
            made.append(_own(cell, texts))
            continue
        seen.add(name)
        if not known.is_editable and cell["source"] != known.source:
            notes.append(f"cell {name} was changed; it is restored")
        made.append(_restored(known, cell["source"] if known.is_editable else known.source))
    made.reverse()
    for name, known in released.items():
        if known.about["grade"] and name not in seen:
            notes.append(f"cell {name} was deleted; it is added at the end")
            made.append(_restored(known, known.source))
    _number(made)
    metadata = {"language_info": {"name": "python"}}
    return v4.new_notebook(cells=made, metadata=NotebookNode(metadata)), notes


def _name(cell: Mapping[str, Any]) -> str:
    about = cell["metadata"].get("nbgrader")
    name = about.get("grade_id") if isinstance(about, Mapping) else None
    return name if isinstance(name, str) else ""


def _restored(known: Released, source: str) -> NotebookNode:
    if known.cell_type == "code":
        cell = v4.new_code_cell(source)
    else:
        cell = v4.new_markdown_cell(source if source == known.source else _fenced(source))
    cell.metadata["nbgrader"] = NotebookNode(known.about)
    return NotebookNode(cell)


def _own(cell: Mapping[str, Any], texts: Collection[str]) -> NotebookNode:
    """Return a cell that is not in the gradebook, without its metadata."""
    source = cell["source"]
    if cell["cell_type"] == "code":
        return NotebookNode(v4.new_code_cell(source))
    return NotebookNode(v4.new_markdown_cell(source if source in texts else _fenced(source)))


def _fenced(text: str) -> str:
    """Return markdown that shows a text literally."""
    longest = max((len(ticks) for ticks in TICKS.findall(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _number(cells: list[NotebookNode]) -> None:
    """Give each cell an id made from its position, so that the same text has the same ids."""
    for number, cell in enumerate(cells, 1):
        name = str(cell.metadata.get("nbgrader", {}).get("grade_id", "")).replace("_", "-")
        cell.id = f"{number}-{name}" if CELL_ID.fullmatch(f"{number}-{name}") else str(number)
