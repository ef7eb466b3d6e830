"""Untrusted side: format the values that a notebook's cell displays, for each MIME type."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

Bundle = dict[str, str]  # MIME type -> text; binary data in base64, as in notebooks


class Displays:
    """Collects the values that a cell displays on a rank: its last expression, and `display`."""

    def __init__(self) -> None:
        self.bundles: list[Bundle] = []
        self._format = _formatter()

    def show(self, *values: Any) -> None:
        """Display values below the printed output: `display` in a rank's namespace."""
        self.bundles += [self._format(value) for value in values]

    def take(self) -> list[Bundle]:
        """Return the values displayed since the last call."""
        bundles, self.bundles = self.bundles, []
        return bundles


def _formatter() -> Callable[[Any], Bundle]:
    try:
        from IPython.core.formatters import DisplayFormatter
        from IPython.core.pylabtools import print_figure
    except ImportError:  # tests may run without IPython; a notebook can't
        return lambda value: {"text/plain": repr(value)}
    formatter = DisplayFormatter()
    formatter.formatters["image/png"].for_type_by_name(
        "matplotlib.figure", "Figure", lambda figure: print_figure(figure, "png", base64=True)
    )

    def bundle(value: Any) -> Bundle:
        forms, _ = formatter.format(value)
        return {mime: _text(data) for mime, data in forms.items()}

    return bundle


def _text(data: Any) -> str:
    return base64.b64encode(data).decode() if isinstance(data, bytes) else str(data)
