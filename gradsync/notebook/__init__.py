"""Notebooks: `check` and `grade` an exercise that is solved in a notebook, and cells on N ranks.

Begin with `answer`. `namespace` finds the source of an answer, `definitions` (pure functions)
makes files from it and the learner's own files, and `definitions.locations` replaces lines of these
files in a report by cells and lines. `magics` runs cells on ranks, and `cell_output` shows the
output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradsync.notebook.answer import check, grade

__all__ = ["check", "grade"]


def __getattr__(name: str) -> Any:
    """Import the grader on first use, so that `import gradsync.notebook` is quick."""
    if name in __all__:
        from gradsync.notebook import answer

        return getattr(answer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
