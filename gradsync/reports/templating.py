"""Load the jinja2 templates of this package; all text in them is escaped and printable."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from gradsync.records import Status, Verdict
from gradsync.reports import summary
from gradsync.reports.text import amount, blocks, printable
from gradsync.reports.timeline import collectives
from gradsync.reports.timeline.palette import rank_colour
from gradsync.text import counted, full_stop

STATUS_WORDS: dict[Status, str] = {
    "passed": "done",
    "failed": "failed",
    "error": "exception",
    "deadlock": "deadlock",
    "timeout": "out of time",
    "crashed": "crashed",
    "missing": "missing",
    "unfinished": "to write",
}


def template(name: str) -> Template:
    """Return one of this folder's templates."""
    return _environment().get_template(name)


def _drawn(verdict: Verdict) -> Markup:
    # Markup: ElementTree has already escaped all text.
    return Markup(collectives.render(verdict.events, verdict.world_size))


def _shown(value: Any) -> Any:
    """Return a value for a template, without characters that escaping does not make safe."""
    return printable(value) if type(value) is str else value


@functools.cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(amount=amount, blocks=blocks, colour=rank_colour, timeline=_drawn)
    made.filters.update(
        sentence=summary.sentence, paragraphs=summary.paragraphs, guide=summary.guide
    )
    made.filters.update(printed_by=summary.printed_by, full_stop=full_stop)
    made.globals.update(words=STATUS_WORDS, hint=summary.hint_command, counted=counted)
    return made
