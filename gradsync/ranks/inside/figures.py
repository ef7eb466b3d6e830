"""Matplotlib's backend on the ranks of a notebook: `plt.show()` shows the figures below the cell.

The environment variable MPLBACKEND names this module, so only matplotlib imports it.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas

from gradsync.ranks.inside.cells import Displays

__all__ = ["FigureCanvas", "show"]


def show(*_: Any, **__: Any) -> None:
    """Show all open figures, and close them: the next `show` does not show them again."""
    if Displays.of_cell is not None:
        Displays.of_cell.show(*map(plt.figure, plt.get_fignums()))
    plt.close("all")
