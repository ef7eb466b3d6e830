"""What a rule returns that recognises a mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gradsync.records import Diagnosis


def found(code: str, text: str, guide: str, ranks: Iterable[int] = ()) -> Diagnosis:
    """Return the diagnosis of a mistake of these ranks, with a heading of the guide."""
    return Diagnosis(code, tuple(ranks), text, guide=guide)


def first_of(checks: Iterable[Callable[[], Diagnosis | None]]) -> Diagnosis | None:
    """Return the first mistake that these find, one after the other, or None."""
    return next((one for check in checks if (one := check()) is not None), None)
