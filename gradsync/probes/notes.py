"""What a model notes of how it is called."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


class Notes(list[T]):
    """A list that a model shares with its copies: what those are called with counts as well."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Notes[T]:
        return self
