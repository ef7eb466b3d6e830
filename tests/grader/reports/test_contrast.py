"""The contrast of colours on pages, as WCAG 2.2 defines and requires it (level AA)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradsync import reports
from gradsync.reports.timeline import collectives, svg
from gradsync.reports.timeline.palette import rank_colour

TEXT, GRAPHICS = 4.5, 3.0  # the least contrast
RANKS = range(8)
STYLE = (Path(reports.__file__).parent / "style.html.j2").read_text()

Colour = tuple[float, float, float]


def rgb(code: str) -> Colour:
    """Return "#rgb" or "#rrggbb" as three numbers from 0 to 1."""
    digits = code[1:] if len(code) == 7 else "".join(2 * digit for digit in code[1:])
    red, green, blue = (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
    return red, green, blue


def mixed(above: Colour, below: Colour, share: float) -> Colour:
    """Return the mix of two colours; `share` is the opacity of the upper one."""
    red, green, blue = (share * a + (1 - share) * b for a, b in zip(above, below, strict=True))
    return red, green, blue


def luminance(colour: Colour) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Colour, other: Colour) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def palettes() -> dict[str, dict[str, Colour]]:
    """Return the colours of the style by their names: for light and dark screens, and for paper."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    colours = [re.findall(r"--(\w+): (#[0-9a-f]+)", block) for block in blocks]
    light, dark, paper = ({name: rgb(code) for name, code in block} for block in colours)
    return {"light": light, "dark": dark, "paper": paper}


def share(style: str, rule: str, setting: str) -> float:
    """Return a number in a rule of a timeline's style."""
    found = re.search(rf"\.{rule}{{[^}}]*?{setting}(\d*\.?\d+)", style)
    assert found
    return float(found[1])


medium = pytest.mark.parametrize("colours", palettes().values(), ids=palettes())


def test_the_formula_gives_the_known_values():
    assert contrast(rgb("#000"), rgb("#fff")) == pytest.approx(21)
    assert contrast(rgb("#777777"), rgb("#fff")) == pytest.approx(4.48, abs=0.005)


@medium
@pytest.mark.parametrize("ground", ["ground", "card", "code"])
@pytest.mark.parametrize("name", ["ink", "dim", "good", "bad", "todo"])
def test_text_is_readable(colours, name, ground):
    assert contrast(colours[name], colours[ground]) >= TEXT


@medium
@pytest.mark.parametrize("name", ["focus", "bar", "good", "bad", "todo"])
def test_the_focus_and_graphics_can_be_seen(colours, name):
    assert contrast(colours[name], colours["card"]) >= GRAPHICS
    assert contrast(colours[name], colours["ground"]) >= GRAPHICS


@medium
@pytest.mark.parametrize("rank", RANKS)
def test_the_names_of_ranks_are_readable(colours, rank):
    part = share(svg.STYLE, "name", r"var\(--rank\) ") / 100

    assert contrast(mixed(rgb(rank_colour(rank)), colours["ink"], part), colours["card"]) >= TEXT


@medium
@pytest.mark.parametrize("rank", RANKS)
def test_the_labels_of_collectives_and_ranks_are_readable(colours, rank):
    opacity = share(collectives._STYLE, "bar", "fill-opacity:")
    bar = mixed(rgb(rank_colour(rank)), colours["card"], opacity)

    assert contrast(colours["ink"], bar) >= TEXT


@medium
def test_quiet_text_of_a_timeline_is_readable(colours):
    opacity = share(svg.STYLE, "quiet", "fill-opacity:")

    assert contrast(mixed(colours["ink"], colours["card"], opacity), colours["card"]) >= TEXT


def test_paper_is_black_on_white():
    paper = palettes()["paper"]

    assert (paper["ink"], paper["ground"], paper["card"]) == (rgb("#000"), *2 * [rgb("#fff")])
