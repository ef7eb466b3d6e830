"""A list in which a model records its calls."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


class Notes(list[T]):
    """A list that a model shares with its deep copies, so that their calls are recorded too."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Notes[T]:
        return self
