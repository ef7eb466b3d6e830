"""Folders for tools that compare submissions, with the templates as code that all share.

JPlag compares whole submissions, Dolos one file of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from gradsync.course.catalogue import Course
from gradsync.course.release.contents import template_of
from gradsync.reports.exports import sheets
from gradsync.reports.gradebook import cell
from gradsync.submission import Submission

SUBMISSIONS, DOLOS, BASE = "submissions", "dolos", "base-code"
README = """\
Submissions of a class, for tools that find similar programs. A similarity is a reason to look, not
a proof. Files that are equal to their template are left out.

JPlag (https://github.com/jplag/JPlag) compares whole submissions:

    java -jar jplag.jar --language python3 --base-code {submissions}/{base} {submissions}

Dolos (https://dolos.ugent.be) compares one file of each submission:

{commands}
"""


def similarity_files(
    submissions: Mapping[str, Submission], course: Course
) -> tuple[dict[str, bytes], list[str]]:
    """Return the files of the folders by path, and the names without a file to compare.

    Args:
        submissions: by the name of a folder, which no two share.
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
        text = sheets.write(("filename", "full_name"), learners)
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
