"""The files in a folder of grades, each of which is written atomically."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from gradsync.course import whole_files
from gradsync.records import Grade, Observation, Origin
from gradsync.reports import gradebook, machine
from gradsync.reports.text import carriable
from gradsync.reports.timeline import chrome_trace, overlap

REPORT, PAGE, GRADEBOOK = "report.json", "report.html", "gradebook.csv"
FAILURE = "grader-failed.json"  # instead of a grade: why the grader failed on a submission
STATE = ".grading.json"  # beside the gradebook: the seed, for the next run
FACTS, ROSTER = ".class.json", "roster.csv"
CLASS_PAGE = "class.html"
SHARED = (GRADEBOOK, CLASS_PAGE, STATE, FACTS, ROSTER)
# Characters that some file systems refuse, and the names of the class's files in the same folder.
_TAKEN = r"^(?=(?:gradebook|roster|overrides)\.csv$|class\.html$)."
UNSAFE = re.compile(rf"[^\w. @+-]|^\.|\.$|{_TAKEN}", re.IGNORECASE)
MAX_NAME = 200  # bytes; most file systems allow 255


def write_report(submission: str, page: str, content: str, out: Path) -> Path:
    """Write `report.html` and `report.json` to the submission's folder in `out`; return it.

    The JSON is written last: if it exists, the report is complete.
    """
    folder = out / folder_name(submission)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / PAGE, page)
    write_whole(folder / REPORT, content)
    (folder / FAILURE).unlink(missing_ok=True)
    return folder


def read_grade(submission: str, out: Path, origin: Origin, seed: int) -> Grade | None:
    """Return the grade in a submission's report, if it is complete and has this origin and seed."""
    folder = out / folder_name(submission)
    try:
        text = (folder / REPORT).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if not (folder / PAGE).is_file() or (folder / FAILURE).exists():
        return None
    return machine.read(text, origin, seed)


def grade_folders(out: Path) -> list[Path]:
    """Return the folders with a report, or with the reason why the grader failed, by name."""
    return sorted({path.parent for name in (REPORT, FAILURE) for path in out.glob(f"*/{name}")})


def write_failure(submission: str, problem: str, out: Path) -> None:
    """Store that the grader failed on a submission, and why."""
    folder = out / folder_name(submission)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"submission": carriable(submission), "problem": carriable(problem)}
    write_whole(folder / FAILURE, json.dumps(content, indent=2) + "\n")


def read_failure(path: Path) -> tuple[str, str] | None:
    """Return a submission's name and why the grader failed on it, or None if it did not fail."""
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


def former_gradebook(out: Path) -> str:
    """Return the text of the existing gradebook, or "".

    Raises:
        NoGradebook: it is not text.
    """
    try:
        return (out / GRADEBOOK).read_bytes().decode(gradebook.ENCODING)
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


def write_whole(path: Path, text: str, encoding: str = "utf-8") -> None:
    """Replace a file atomically: a crash leaves the previous file."""
    whole_files.write_whole(path, text.encode(encoding))


def remove_leftovers(out: Path) -> None:
    """Remove the temporary files of a killed grader; no other grader may be writing to `out`."""
    for place in (*SHARED, *(f"*/{name}" for name in (REPORT, PAGE, FAILURE))):
        folder, _, name = place.rpartition("/")
        for path in out.glob(f"{folder or '.'}/.{name}.{'[0-9a-f]' * 8}"):
            path.unlink()
