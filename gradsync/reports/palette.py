"""One colour per rank, the same wherever a rank is shown."""

from __future__ import annotations

# Blue, orange, green, purple, then teal, rose, olive, slate: of middle lightness, so that a line
# or a tint of each is seen on a light and on a dark ground alike.
_COLOURS = (
    "#3f7fd9",
    "#dd7a1b",
    "#2f9a5b",
    "#9160cf",
    "#1d97a5",
    "#cf4f86",
    "#8a8f2a",
    "#6f7f92",
)


def rank_colour(rank: int) -> str:
    """The colour of `rank` as "#rrggbb"; from the ninth rank on they come again."""
    return _COLOURS[rank % len(_COLOURS)]
