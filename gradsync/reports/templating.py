"""Load the jinja2 templates of this package; all text in them is escaped and printable."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from gradsync.records import Status, Verdict
from gradsync.reports import summary
from gradsync.reports.corrections import charged_text, correction_text
from gradsync.reports.text import amount, blocks, duration, printable
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


# Where a long name may be divided between two lines: after an underscore, a slash or a dot, and
# before a capital letter inside of a word.
_PART = re.compile(r"(?<=[_/.:])(?=\w)|(?<=[a-z0-9])(?=[A-Z])")


def template(name: str) -> Template:
    """Return one of this folder's templates."""
    return _environment().get_template(name)


def _drawn(verdict: Verdict) -> Markup:
    # Markup: ElementTree has already escaped all text.
    return Markup(collectives.render(verdict.events, verdict.world_size))


def _breakable(name: str) -> Markup:
    """Return a name that a narrow page divides between its parts, not within a word."""
    return Markup("<wbr>").join(escape(part) for part in _PART.split(printable(name)))


@functools.cache
def _script(name: str) -> Markup:
    """Return a script of this folder, for a page that contains it."""
    return Markup((Path(__file__).parent / name).read_text(encoding="utf-8"))


def _script_policy(*names: str) -> str:
    """Return the sources of a content security policy that allow these scripts and no others."""
    digests = (hashlib.sha256(_script(name).encode()).digest() for name in names)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


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
    made.filters.update(charged=charged_text, correction=correction_text)
    made.filters.update(breakable=_breakable, duration=duration)
    made.globals.update(script=_script, script_policy=_script_policy)
    made.globals.update(words=STATUS_WORDS, hint=summary.hint_command, counted=counted)
    made.globals.update(later=summary.LATER)
    return made
