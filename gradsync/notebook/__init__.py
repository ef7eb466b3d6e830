"""Notebooks: `check` and `grade` an exercise that is solved in one, and cells on N ranks.

`answer` is the way in. `namespace` finds an answer's source, `definitions` (with `statements`,
`needs` and `ipython`, all pure) makes the files of a submission from it, `hand_in` puts them
beside the learner's own, and `locations` names cells where a report names lines of these files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradsync.notebook.answer import check, grade

__all__ = ["check", "grade"]


def __getattr__(name: str) -> Any:
    """Import the grader when it is first asked for: `import gradsync.notebook` stays instant."""
    if name in __all__:
        from gradsync.notebook import answer

        return getattr(answer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
