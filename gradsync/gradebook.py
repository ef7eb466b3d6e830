"""Many submissions graded into one folder, by a run that can be taken up again where it stopped.

Each submission's report is written when it is graded, and its line in the gradebook right after. A
later run takes over what was finished there and still holds: a whole report, made from the same
submission, course and seed. Lines of submissions that a run does not name stay as they are, and
with them the seed of the folder.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from gradsync.course import Course
from gradsync.errors import UnusableInput
from gradsync.grading import draw_seed, grade
from gradsync.handback import (
    PAGE,
    STATE,
    folder_name,
    lines_of_others,
    read_grade,
    remove_leftovers,
    update_gradebook,
    write_report,
    write_whole,
)
from gradsync.origin import course_digest, submission_digest
from gradsync.ranks.run import LauncherName
from gradsync.records import Grade, Origin, Report
from gradsync.reports import gradebook, summary
from gradsync.submission import (
    Submission,
    SubmissionError,
    find_submissions,
    read_submission,
    submission_name,
)

LOCK = ".grading.lock"


class FolderInUse(UnusableInput):
    """Another grader is at work in the folder."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A submission to grade, and the command that, with the seed behind it, does so again."""

    submission: Submission
    command: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a submission: graded now, taken over, or lost to a failure of the grader."""

    grade: Grade
    page: Path  # its report.html
    report: Report | None = None  # where it was graded now
    problem: Exception | None = None  # where the grader failed


def grade_class(
    entries: Sequence[Entry],
    course: Course,
    phases: Sequence[str],
    out: Path,
    *,
    seed: int | None = None,
    fresh: bool = False,
    sandboxed: bool = True,
) -> Iterator[Outcome]:
    """Grade the submissions one after the other into `out`, yielding each as it is done.

    Each name must be there once. A failure of the grader costs the one submission alone, which
    has no numbers then and is tried again by a later run.

    Args:
        entries: what to grade, in this order.
        course: whose hidden suites are run.
        phases: "phase1", "phase2".
        out: the folder of the reports and the gradebook.
        seed: from which tests draw their inputs; None takes the folder's own.
        fresh: grade all of them anew.
        sandboxed: keep the ranks apart from the machine; `ranks.sandbox.check` says if it can.

    Raises:
        FolderInUse: another grader is at work in `out`.
        NoGradebook: `out` has a gradebook.csv of another kind.
        CourseError: a phase has no hidden suite.
        OSError: `out` can't be written to.
    """
    course_made = course_digest(course, phases)
    with _alone_in(out):
        remove_leftovers(out)
        names = [entry.submission.name for entry in entries]
        seed = _settled_seed(out, seed, fresh=fresh, others=bool(lines_of_others(names, out)))
        origins = {
            name: Origin(submission_digest(entry.submission), course_made, sandboxed)
            for name, entry in zip(names, entries, strict=True)
        }
        done = {} if fresh else _finished(origins, out, seed)
        update_gradebook(done.values(), out)
        for name, entry in zip(names, entries, strict=True):
            if name in done:
                yield Outcome(done[name], _page(name, out))
                continue
            outcome = _grade(entry, course, phases, seed, origins[name], out)
            update_gradebook([outcome.grade], out)
            yield outcome


def entries_at(
    paths: Sequence[Path], course: Course, phases: Sequence[str], out: Path, command: str
) -> list[Entry]:
    """Read the submissions at these paths, and those in the classes among them.

    Where two are called alike a number tells them apart. `out` is none, though it may lie in a
    class. `command` with a path behind it grades what is there.

    Raises:
        SubmissionError: there is none at a path.
    """
    found = [member for path in paths for member in find_submissions(path, course)]
    members = [path for path in dict.fromkeys(found) if path.resolve() != out.resolve()]
    if not members:
        raise SubmissionError(f"{out} is where grades are written: no submission is beside it.")
    return [
        Entry(read_submission(path, course, name, phases), f"{command} {shlex.quote(str(path))}")
        for path, name in _unique_names(members).items()
    ]


def _finished(origins: Mapping[str, Origin], out: Path, seed: int) -> dict[str, Grade]:
    """Return the grades that an earlier run came to and that still hold, by submission."""
    found = {name: read_grade(name, out, origin, seed) for name, origin in origins.items()}
    return {name: grade for name, grade in found.items() if grade is not None}


def _grade(
    entry: Entry, course: Course, phases: Sequence[str], seed: int, origin: Origin, out: Path
) -> Outcome:
    name = entry.submission.name
    try:
        launcher: LauncherName | None = "sandbox" if origin.sandboxed else None
        report = grade(entry.submission, course, phases=phases, seed=seed, launcher=launcher)
        report = replace(report, command=entry.command, origin=origin)
        write_report(report, out)
    except Exception as problem:  # noqa: BLE001 - whatever it is, the others are graded
        return Outcome(Grade(name, "grader-failed"), _page(name, out), problem=problem)
    return Outcome(summary.grade(report), _page(name, out), report)


def _page(name: str, out: Path) -> Path:
    return out / folder_name(name) / PAGE


@contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """Keep other graders out of the folder; the lock goes with this process, however it ends."""
    out.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise FolderInUse(
            f"another grader is at work in {out}. Wait for its end, or choose another folder "
            "with --out."
        ) from None
    try:
        yield
    finally:
        lock.release()


def _settled_seed(out: Path, given: int | None, *, fresh: bool, others: bool) -> int:
    """Return the seed for this run.

    It becomes the folder's own, unless the folder has grades of `others` from the seed of before:
    these would have to be graded again.
    """
    kept = _kept_seed(out)
    if given is not None:
        seed = given
    elif kept is None or (fresh and not others):
        seed = draw_seed()
    else:
        seed = kept
    if seed != kept and (kept is None or not others):
        write_whole(out / STATE, json.dumps({"seed": seed}) + "\n")
    return seed


def _kept_seed(out: Path) -> int | None:
    try:
        seed = json.loads((out / STATE).read_text(encoding="utf-8"))["seed"]
    except (OSError, ValueError, LookupError, TypeError):
        return None  # there is none, or it is torn
    return seed if type(seed) is int and seed >= 0 else None


def _unique_names(paths: Iterable[Path]) -> dict[Path, str]:
    """Return each path's name; later ones get a number where they would share a folder."""
    names: dict[Path, str] = {}
    taken: set[str] = set()
    for path in paths:
        name = plain = submission_name(path)
        count = 1
        while taken & {folder_name(name), gradebook.cell(name)}:
            count += 1
            name = f"{plain}-{count}"
        names[path] = name
        taken |= {folder_name(name), gradebook.cell(name)}
    return names
