"""Make folders for tools that compare submissions, with the templates as code that all share.

JPlag compares complete submissions, Dolos one file of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from gradsync.course.catalogue import Course
from gradsync.course.release.contents import template_of
from gradsync.grading.classes.entries import Entry, entries_at
from gradsync.grading.imports.bulk import unpacked
from gradsync.grading.store import folder_name
from gradsync.reports.gradebook import cell
from gradsync.reports.text import csv_text
from gradsync.submission import Submission
from gradsync.text import listed

SUBMISSIONS, DOLOS, BASE = "submissions", "dolos", "base-code"
README = """\
Submissions of a class, for tools that find similar programs. A similarity is not a proof:
compare the files yourself. Files that are equal to their template are left out.

JPlag (https://github.com/jplag/JPlag) compares complete submissions:

    java -jar jplag.jar --language python3 --base-code {submissions}/{base} {submissions}

Dolos (https://dolos.ugent.be) compares one file of each submission:

{commands}
"""


def submissions_to_compare(path: Path, course: Course, target: Path) -> dict[str, Submission]:
    """Return the submissions of a class, with the same names as in `gradsync grade`.

    A group's submission is compared once, under the names of all members.

    Args:
        path: a folder of submissions, or a download of a class.
        course: the course, which names the files.
        target: the folder to write to, which may be in `path`.

    Returns:
        The submissions by the names of their folders.

    Raises:
        SubmissionError: there is no submission at the path.
        TableError: the file of names in a download can't be read.
    """
    with unpacked([path], course) as given:
        groups: dict[object, list[Entry]] = {}
        for entry in entries_at(list(given), course, target, "gradsync grade", None, given):
            source = entry.source if isinstance(entry.source, Path) else entry.name
            groups.setdefault(source, []).append(entry)
        read: dict[str, Submission] = {}
        for entries in groups.values():
            submission = entries[0].submission(course, course.phases)
            name = listed(entry.name for entry in entries)
            read[folder_name(name)] = replace(submission, name=name)
        return read


def similarity_files(
    submissions: Mapping[str, Submission], course: Course
) -> tuple[dict[str, bytes], list[str]]:
    """Return the files of the folders by path, and the names without a file to compare.

    Args:
        submissions: the submissions by the name of a folder, which is unique.
        course: the course with its solutions or templates.

    Raises:
        CourseError: a template can't be made.
    """
    shared = {
        f"{phase}/{file}": template_of(course, phase, file).encode()
        for phase in course.phases
        for file in course.files(phase)
    }
    base = BASE
    while base in submissions:
        base += "-"
    found = {f"{SUBMISSIONS}/{base}/{path}": content for path, content in shared.items()}
    rows: dict[str, list[tuple[str, str]]] = {}
    for name, submission in submissions.items():
        for path, content in submission.files.items():
            if content != shared.get(path):
                found[f"{SUBMISSIONS}/{name}/{path}"] = content
                found[f"{DOLOS}/{_folder(path)}/{name}.py"] = content
                rows.setdefault(path, []).append((f"{name}.py", cell(submission.name)))
    for path, learners in rows.items():
        text = csv_text([("filename", "full_name"), *learners])
        found[f"{DOLOS}/{_folder(path)}/info.csv"] = text.encode()
    found["README.txt"] = _readme(sorted(rows), base).encode()
    compared = {path.split("/")[1] for path in found if path.startswith(f"{SUBMISSIONS}/")}
    return found, sorted(submissions.keys() - compared)


def _folder(path: str) -> str:
    """Return "phase1-template_trainer" for "phase1/template_trainer.py"."""
    return str(PurePosixPath(path).with_suffix("")).replace("/", "-")


def _readme(paths: Sequence[str], base: str) -> str:
    commands = "\n".join(
        f"    dolos run --language python --ignore {SUBMISSIONS}/{base}/{path} "
        f"{DOLOS}/{_folder(path)}/info.csv"
        for path in paths
    )
    return README.format(submissions=SUBMISSIONS, base=base, commands=commands)
