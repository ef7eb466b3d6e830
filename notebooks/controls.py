"""Sliders and boxes for a picture; a page without a running notebook shows only the picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ipywidgets as widgets
from IPython.display import display
from matplotlib.figure import Figure

NO_CONTROLS = "(A running notebook shows controls here.)"
LABEL = {"description_width": "130px"}
WIDTH = {"width": "460px"}


def explore(draw: Callable[..., Figure], **controls: widgets.ValueWidget) -> None:
    """Show controls and the picture for their values; draw it again when a value changes.

    The picture is a separate output, so that a page without controls shows it, too.

    Args:
        draw: returns the picture for the controls' values.
        controls: one for each parameter of `draw`.
    """
    bundle = widgets.VBox(list(controls.values()))._repr_mimebundle_()
    display({**bundle, "text/plain": NO_CONTROLS}, raw=True)

    def picture() -> Figure:
        return draw(**{name: control.value for name, control in controls.items()})

    shown = display(picture(), display_id=True)
    for control in controls.values():
        control.observe(lambda _: shown.update(picture()), names="value")


def slider(label: str, value: int, low: int, high: int) -> widgets.IntSlider:
    """Return a slider for a number from `low` to `high`."""
    return widgets.IntSlider(
        value=value,
        min=low,
        max=high,
        description=label,
        continuous_update=False,
        style=LABEL,
        layout=WIDTH,
    )


def choice(label: str, value: int, options: Sequence[int]) -> widgets.SelectionSlider:
    """Return a slider that chooses one of several numbers."""
    return widgets.SelectionSlider(
        value=value, options=options, description=label, style=LABEL, layout=WIDTH
    )


def checkbox(label: str) -> widgets.Checkbox:
    """Return a checkbox."""
    return widgets.Checkbox(description=label, style=LABEL)
