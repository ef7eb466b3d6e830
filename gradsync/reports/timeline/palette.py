"""One colour per rank, used wherever a rank is shown."""

from __future__ import annotations

# Blue, orange, green, purple, teal, rose, olive, slate: of medium lightness, so that lines and
# tints are visible on light and dark backgrounds.
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
    """Return the colour of `rank` as "#rrggbb"; from the ninth rank on, colours repeat."""
    return _COLOURS[rank % len(_COLOURS)]
