"""Write the grades in a folder for another system."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from gradsync.class_records import ClassResults, Result
from gradsync.course.catalogue import Course
from gradsync.course.release.zips import zipped
from gradsync.course.settings import read_settings
from gradsync.course.whole_files import write_whole
from gradsync.errors import GraderError, UnusableInput
from gradsync.exporting import Format
from gradsync.exporting.containers import GRADESCOPE, PRAIRIELEARN, grading_files
from gradsync.exporting.feedback import (
    PAGE,
    Feedback,
    Pages,
    canvas_feedback,
    mailbox,
    moodle_feedback,
)
from gradsync.exporting.similarity import similarity_files, submissions_to_compare
from gradsync.grading.classes.results import read_class
from gradsync.grading.store import GradeStore, folder_name
from gradsync.reports.exports import (
    actions,
    canvas,
    classroom50,
    gradescope,
    junit,
    moodle,
    prairielearn,
)
from gradsync.reports.exports.sheets import NotASheet, Sheet
from gradsync.reports.gradebook import WITHOUT_REPORT
from gradsync.submission import submission_name
from gradsync.submission.contents import listing
from gradsync.text import counted, verb

FEEDBACK: dict[str, tuple[str, Callable[[ClassResults, Pages], Feedback], str]] = {
    "canvas-feedback": (".zip", canvas_feedback, "an upload in a download of Canvas"),
    "moodle-feedback": (".zip", moodle_feedback, "a folder in a download of Moodle"),
    "mail": (".mbox", mailbox, "an address in the roster"),
}
EXPORTS = "exports"  # in the folder of grades
AUTOGRADER, IMAGE = "autograder.zip", "image"
SHEETS: dict[str, Callable[[ClassResults, str], Sheet]] = {
    "canvas": canvas.render,
    "moodle": moodle.render,
}


@dataclass(frozen=True, slots=True)
class Exported:
    """The written files, and the submissions and people that are not in them."""

    paths: tuple[Path, ...]
    without_score: tuple[str, ...] = ()  # submissions without a score
    missing: tuple[str, ...] = ()  # people who handed in nothing and have no score
    not_in_file: tuple[str, ...] = ()  # submissions with a score that a downloaded file lacks
    warnings: tuple[str, ...] = ()  # on overrides.csv, and on learners that roster.csv lacks
    unchanged: tuple[str, ...] = ()  # submissions with only the templates
    without_address: tuple[str, ...] = ()  # submissions whose report can't be returned
    needed: str = ""  # what these lack
    scaled: str = ""  # a sentence on scores that were scaled to the platform's maximum


def export(
    out: Path,
    course: Course,
    to: Format,
    into: Path | None,
    environ: Mapping[str, str],
    *,
    anyway: bool = False,
) -> Exported:
    """Write the grades in `out` for another system.

    Args:
        out: the folder that `gradsync grade --out` wrote; for "similarity", the submissions as
            `gradsync grade` takes them: a folder, or a download of a class.
        course: the course of these grades.
        to: the other system.
        into: the path to write to; None writes to the folder `exports` in `out`.
        environ: environment variables, in which Classroom 50 names the submission.
        anyway: export scores that different versions of the tests gave, too.

    Raises:
        UnusableInput: there are no grades or no submissions, the scores can't be compared, or
            `into` can't be used.
        GraderError: the grader failed on the only submission.
        OSError: a file can't be written.
    """
    if to == "similarity":
        return _similarity(out, course, into)
    if not out.is_dir():
        raise UnusableInput(f"{out} is not a folder of grades. `gradsync grade --out` writes one.")
    data = read_class(GradeStore(out), course)
    target = into or out / EXPORTS / to
    if to == "gradescope" and target.suffix == ".zip":  # may be needed before anything is graded
        return _autograder(data, course, target)
    _check_is_graded(data, out)
    if data.stale and not anyway:
        stale = counted(len(data.stale), "submission")
        raise UnusableInput(
            f"{stale} {verb(data.stale, 'was', 'were')} graded with other tests than the latest "
            f"ones: {listing(data.stale)}. Grade the whole class again, or use --anyway."
        )
    if to in FEEDBACK:
        ending, render, needed = FEEDBACK[to]
        path = target if into else target.with_suffix(ending)
        written = _feedback(data, render, needed, GradeStore(out), path)
    elif to in SHEETS:
        written = _sheet(data, SHEETS[to], into, target.with_suffix(".csv"))
    elif to == "junit":
        path = target if into else target.with_suffix(".xml")
        write_whole(path, junit.render(data).encode())
        written = Exported((path,))
    else:
        written = _each(data, course, to, target, environ)
    return _with_left_out(written, data, to)


def _autograder(data: ClassResults, course: Course, target: Path) -> Exported:
    """Write Gradescope's autograder, a .zip, or the folder of PrairieLearn's image."""
    is_zip = target.suffix == ".zip"
    scripts = GRADESCOPE if is_zip else PRAIRIELEARN
    graded = {exercise.id.partition("/")[0] for exercise in data.exercises}  # none: all phases
    phases = [p for p in course.phases_to_grade("hidden") if p in graded or not graded]
    files = grading_files(course, phases, scripts, data.seed)
    if is_zip:
        write_whole(target, zipped(files))
    else:
        for name, content in files.items():
            write_whole(target / name, content)
    without_solutions = (
        'The autograder has no solutions, so `follow_on = "full"` in course.toml has no effect '
        "there: an exercise that calls a wrong one loses its points.",
    )
    needs_them = read_settings(course.root).follow_on == "full"
    return Exported((target,), warnings=without_solutions if needs_them else ())


def _with_left_out(written: Exported, data: ClassResults, to: Format) -> Exported:
    left_out = [result for result in data.results if not _has_result(result, to)]
    return replace(
        written,
        without_score=tuple(r.submission for r in left_out if r.status != "missing"),
        missing=tuple(
            r.person.label if r.person else r.submission for r in left_out if r.status == "missing"
        ),
        warnings=(*data.warnings, *written.warnings),
    )


def _check_is_graded(data: ClassResults, out: Path) -> None:
    """Raise UnusableInput if nothing in a folder was graded; it may still have a roster."""
    if not any(result.folder for result in data.results):
        raise UnusableInput(
            f"{out} has no grades. Name a folder that `gradsync grade --out` wrote. If these are "
            "the submissions, grade them first: "
            f"`gradsync grade {shlex.quote(str(out))} --out grades`."
        )


def _sheet(
    data: ClassResults,
    render: Callable[[ClassResults, str], Sheet],
    into: Path | None,
    default: Path,
) -> Exported:
    """Write a new CSV file, or fill in the file that the user names."""
    path = into or default
    try:
        previous = into.read_bytes().decode("utf-8-sig") if into and into.is_file() else ""
        sheet = render(data, previous)
    except (UnicodeDecodeError, NotASheet) as problem:
        raise UnusableInput(f"{path} can't be filled in. {problem}") from None
    write_whole(path, sheet.text.encode())
    return Exported((path,), not_in_file=sheet.not_in_file, scaled=sheet.scaled)


def _feedback(
    data: ClassResults,
    render: Callable[[ClassResults, Pages], Feedback],
    needed: str,
    store: GradeStore,
    path: Path,
) -> Exported:
    """Write the reports of the learners into one file.

    Raises:
        UnusableInput: no report can be returned this way.
    """
    made = render(data, lambda result: store.read_text(f"{result.folder}/{PAGE}") or "")
    if not made.count:
        raise UnusableInput(f"No report can be returned this way: each needs {needed}.")
    write_whole(path, made.content)
    return Exported((path,), without_address=made.left_out, needed=needed)


def _each(
    data: ClassResults, course: Course, to: Format, target: Path, environ: Mapping[str, str]
) -> Exported:
    """Write a file for each submission, or one named file for the only submission."""
    results = [each for each in data.results if _has_result(each, to)]
    if target.suffix == ".json":
        if len(data.results) > 1:
            raise UnusableInput(
                f"{target} is one file, but there are {len(data.results)} submissions. Name a "
                "folder with --into."
            )
        if not results:
            raise GraderError(
                f"{data.results[0].submission} has no grade, so there is nothing to export."
            )
        write_whole(target, _rendered(results[0], data, to, environ).encode())
        return Exported((target,))
    for result in results:
        path = target / f"{folder_name(result.submission)}.json"
        write_whole(path, _rendered(result, data, to, {}).encode())
    if to not in ("gradescope", "prairielearn"):
        return Exported((target,))
    made = _autograder(data, course, target / (AUTOGRADER if to == "gradescope" else IMAGE))
    return replace(made, paths=(target, *made.paths))


def _has_result(result: Result, to: Format) -> bool:
    return result.score is not None or (
        to == "prairielearn" and result.status not in WITHOUT_REPORT
    )


def _rendered(result: Result, data: ClassResults, to: Format, environ: Mapping[str, str]) -> str:
    if to == "classroom50":
        graded_at = data.graded_at or datetime.now(timezone.utc)
        return classroom50.render(result, data.title, graded_at, environ)
    renderers = {
        "actions": actions.render,
        "gradescope": gradescope.render,
        "prairielearn": prairielearn.render,
    }
    return renderers[to](result)


def _similarity(submissions: Path, course: Course, into: Path | None) -> Exported:
    beside = submissions if submissions.name not in ("", "..") else submissions.resolve()
    target = into or beside.with_name(f"{submission_name(submissions)}-similarity")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UnusableInput(f"{target} exists already. Name a new folder with --into.")
    read = submissions_to_compare(submissions, course, target)
    files, unchanged = similarity_files(read, course)
    if len(unchanged) == len(read):
        raise UnusableInput(
            f"{submissions} has nothing to compare. It has {counted(len(read), 'submission')}, "
            "with unchanged templates or without the course's files. Name the folder of a class, "
            "or its downloaded archive."
        )
    for name, content in files.items():
        write_whole(target / name, content)
    return Exported((target,), unchanged=tuple(unchanged))
