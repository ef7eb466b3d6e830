"""Grades as files: each submission's report, and the class's gradebook, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from gradsync.records import Grade, Observation, Origin, Report
from gradsync.reports import chrome, gradebook, html, machine, overlap

REPORT, PAGE, GRADEBOOK = "report.json", "report.html", "gradebook.csv"
STATE = ".grading.json"  # beside the gradebook: what the next run must know of this one
# What a file system may mind; and the gradebook's own name, for it stands beside the folders.
UNSAFE = re.compile(r"[^\w. @+-]|^\.|\.$|^g(?=radebook\.csv$)", re.IGNORECASE)
MAX_NAME = 200  # bytes; most file systems take 255


def write_report(report: Report, out: Path) -> Path:
    """Write `report.html` and `report.json` to the submission's folder in `out`; return it.

    The JSON comes last: where it is, all of the report is.
    """
    folder = out / folder_name(report.submission)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / PAGE, html.render(report))
    write_whole(folder / REPORT, machine.render(report))
    return folder


def read_grade(submission: str, out: Path, origin: Origin, seed: int) -> Grade | None:
    """Return the grade in a submission's report in `out`, if it is whole and made from this."""
    folder = out / folder_name(submission)
    try:
        text = (folder / REPORT).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return machine.read(text, origin, seed) if (folder / PAGE).is_file() else None


def update_gradebook(grades: Iterable[Grade], out: Path) -> Path:
    """Write these grades into `gradebook.csv` in `out`, beside the lines it has; return its path.

    Raises:
        NoGradebook: the file there is none.
    """
    path = out / GRADEBOOK
    write_whole(path, gradebook.render(grades, _former(path)))
    return path


def lines_of_others(submissions: Iterable[str], out: Path) -> list[str]:
    """Return whose lines in the gradebook in `out` are not those of these submissions.

    Raises:
        NoGradebook: the file there is none.
    """
    known = gradebook.submissions(_former(out / GRADEBOOK))
    return sorted(known - {gradebook.cell(submission) for submission in submissions})


def _former(path: Path) -> str:
    """Return the text of the gradebook so far, "" without one."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise gradebook.NoGradebook("it is not a text in UTF-8") from None


def write_trace(seen: Observation, out: Path) -> tuple[Path, Path]:
    """Write a run as a picture, `out`.svg, and for Perfetto, `out`.json; return both paths."""
    picture, trace = (out.with_name(out.name + ending) for ending in (".svg", ".json"))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(picture, overlap.render(seen.events, seen.world_size))
    write_whole(trace, chrome.render(seen.events, seen.world_size))
    return picture, trace


def folder_name(submission: str) -> str:
    """Return a name that any file system takes, another for each name: what is odd is numbered."""
    name = UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", submission) or "%"
    data = name.encode()
    if len(data) <= MAX_NAME:
        return name
    digest = hashlib.sha256(data).hexdigest()[:16]
    return f"{data[:MAX_NAME].decode(errors='ignore')}%{digest}"


def write_whole(path: Path, text: str) -> None:
    """Replace a file at once: a crash leaves the former one, never a half."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave the new name and no content
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def remove_leftovers(out: Path) -> None:
    """Remove what a killed grader had not yet renamed; no other one may be at work in `out`."""
    for place in (GRADEBOOK, STATE, f"*/{REPORT}", f"*/{PAGE}"):
        folder, _, name = place.rpartition("/")
        for path in out.glob(f"{folder or '.'}/.{name}.{'[0-9a-f]' * 8}"):
            path.unlink()
