"""Grades as files: each submission's report, and the class's gradebook, whole or not at all."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from gradsync.records import Observation, Report
from gradsync.reports import chrome, gradebook, html, machine, overlap

UNSAFE = re.compile(r"[^\w. @+-]|^\.|\.$")


def write_report(report: Report, out: Path) -> Path:
    """Write `report.json` and `report.html` to the submission's folder in `out`; return it."""
    folder = out / folder_name(report.submission)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "report.json", machine.render(report))
    write_whole(folder / "report.html", html.render(report))
    return folder


def write_gradebook(reports: Sequence[Report], out: Path) -> Path:
    """Write `gradebook.csv` to `out`; return its path."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "gradebook.csv"
    write_whole(path, gradebook.render(reports))
    return path


def write_trace(seen: Observation, out: Path) -> tuple[Path, Path]:
    """Write a run as a picture, `out`.svg, and for Perfetto, `out`.json; return both paths."""
    picture, trace = (out.with_name(out.name + ending) for ending in (".svg", ".json"))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(picture, overlap.render(seen.events, seen.world_size))
    write_whole(trace, chrome.render(seen.events, seen.world_size))
    return picture, trace


def folder_name(submission: str) -> str:
    """Return a name that any file system takes: what is odd becomes its number."""
    return UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", submission)[:200] or "%"


def write_whole(path: Path, text: str) -> None:
    """Replace a file at once: a crash leaves the former one, never a half."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        beside.write_text(text, encoding="utf-8", newline="")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
