"""Write grades to files: each submission's report, and the class's gradebook, atomically."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

from gradsync.records import Grade, Observation, Origin, Report
from gradsync.reports import gradebook, html, machine
from gradsync.reports.guide_sections import GuideText
from gradsync.reports.text import carriable
from gradsync.reports.timeline import chrome_trace, overlap

REPORT, PAGE, GRADEBOOK = "report.json", "report.html", "gradebook.csv"
FAILURE = "grader-failed.json"  # instead of a grade: why the grader failed on a submission
STATE = ".grading.json"  # beside the gradebook: what the next run needs from this one
# Characters that some file systems refuse, and the name of the gradebook in the same folder.
UNSAFE = re.compile(r"[^\w. @+-]|^\.|\.$|^g(?=radebook\.csv$)", re.IGNORECASE)
MAX_NAME = 200  # bytes; most file systems allow 255


def write_report(report: Report, out: Path, guides: Sequence[GuideText] = ()) -> Path:
    """Write `report.html` and `report.json` to the submission's folder in `out`; return it.

    The page contains the sections of the guides that it refers to. The JSON is written last: if it
    exists, the report is complete.
    """
    folder = out / folder_name(report.submission)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / PAGE, html.render(report, guides))
    write_whole(folder / REPORT, machine.render(report))
    return folder


def read_grade(submission: str, out: Path, origin: Origin, seed: int) -> Grade | None:
    """Return the grade in a submission's report, if it is complete and has this origin and seed."""
    folder = out / folder_name(submission)
    try:
        text = (folder / REPORT).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return machine.read(text, origin, seed) if (folder / PAGE).is_file() else None


def write_failure(submission: str, problem: str, out: Path) -> None:
    """Store that the grader failed on a submission, and why."""
    folder = out / folder_name(submission)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"submission": carriable(submission), "problem": carriable(problem)}
    write_whole(folder / FAILURE, json.dumps(content, indent=2) + "\n")


def read_failure(path: Path) -> tuple[str, str] | None:
    """Return the name of a submission and why the grader failed on it, or None if it did not."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return str(content["submission"]), str(content["problem"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError):
        return path.parent.name, "the grader failed"


def kept_seed(out: Path) -> int | None:
    """Return the seed of the grades in a folder, or None if it has none."""
    try:
        seed = json.loads((out / STATE).read_text(encoding="utf-8"))["seed"]
    except (OSError, ValueError, LookupError, TypeError):
        return None  # there is no file, or it is damaged
    return seed if type(seed) is int and seed >= 0 else None


def update_gradebook(grades: Iterable[Grade], out: Path, phases: Sequence[str]) -> Path:
    """Add these grades to `gradebook.csv` in `out`, or replace their lines; return its path.

    Raises:
        NoGradebook: the existing file is not a gradebook of a course with these phases.
    """
    path = out / GRADEBOOK
    write_whole(path, gradebook.render(grades, phases, _former(path)))
    return path


def lines_of_others(submissions: Iterable[str], out: Path, phases: Sequence[str]) -> list[str]:
    """Return the names of all other submissions with a line in the gradebook in `out`.

    Raises:
        NoGradebook: the existing file is not a gradebook of a course with these phases.
    """
    known = gradebook.submissions(_former(out / GRADEBOOK), phases)
    return sorted(known - {gradebook.cell(submission) for submission in submissions})


def _former(path: Path) -> str:
    """Return the text of the existing gradebook, or ""."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise gradebook.NoGradebook("it is not UTF-8 text") from None


def write_trace(seen: Observation, out: Path) -> tuple[Path, Path]:
    """Write a run as a picture, `out`.svg, and as a trace for Perfetto, `out`.json."""
    picture, trace = (out.with_name(out.name + ending) for ending in (".svg", ".json"))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(picture, overlap.render(seen.events, seen.world_size))
    write_whole(trace, chrome_trace.render(seen.events, seen.world_size))
    return picture, trace


def folder_name(submission: str) -> str:
    """Return a unique folder name for a submission that all file systems allow."""
    name = UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", submission) or "%"
    data = name.encode()
    if len(data) <= MAX_NAME:
        return name
    digest = hashlib.sha256(data).hexdigest()[:16]
    return f"{data[:MAX_NAME].decode(errors='ignore')}%{digest}"


def write_whole(path: Path, text: str) -> None:
    """Replace a file atomically: a crash leaves the former file."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # otherwise a power cut may leave an empty file
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def remove_leftovers(out: Path) -> None:
    """Remove the temporary files of a killed grader; no other one may be writing to `out`."""
    for place in (GRADEBOOK, STATE, f"*/{REPORT}", f"*/{PAGE}"):
        folder, _, name = place.rpartition("/")
        for path in out.glob(f"{folder or '.'}/.{name}.{'[0-9a-f]' * 8}"):
            path.unlink()
