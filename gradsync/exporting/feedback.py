"""Put each learner's report into the file that a platform takes back, or into a mailbox.

Canvas's *Upload feedback files* finds a learner by the ids in a file's name, and shows the file by
the name of the learner's upload. So a report gets the name of an upload, and its format. Moodle's
*Upload multiple feedback files in a zip* takes the folder names of its own download. Mail is only
written, not sent: any mail program or `git send-email`-like tool can send a mailbox.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import EmailMessage
from email.policy import default
from pathlib import PurePosixPath

from gradsync.class_records import ClassResults, Result
from gradsync.course.release.zips import zipped
from gradsync.grading.imports.platforms import CANVAS, MOODLE
from gradsync.reports.exports.lines import lines_of, next_step, score_text, summary_of
from gradsync.reports.text import amount, printable

PAGE = "report.html"
ARCHIVES = (".zip", ".tar.gz", ".tgz")
MAILBOX = default.clone(mangle_from_=True, linesep="\n")
START = (
    b"From gradsync Thu Jan  1 00:00:00 1970\n"  # of each message in a mailbox; no time is known
)


@dataclass(frozen=True, slots=True)
class Feedback:
    """The content of a file with reports, and the submissions that have none in it."""

    content: bytes
    count: int  # of the reports in it
    left_out: tuple[str, ...]


Pages = Callable[[Result], str]  # the text of a result's report.html


def canvas_feedback(data: ClassResults, page_of: Pages) -> Feedback:
    """Return the zip for Canvas: a report for each learner whose upload Canvas knows."""
    return _zip(data, page_of, _in_canvas)


def moodle_feedback(data: ClassResults, page_of: Pages) -> Feedback:
    """Return the zip for Moodle, with the folders of its download."""
    return _zip(data, page_of, _in_moodle)


def mailbox(data: ClassResults, page_of: Pages) -> Feedback:
    """Return an mbox with a message for each score whose learner has an address in the roster."""
    messages, left_out = [], []
    for result in data.results:
        if result.score is None:
            continue
        if result.person is None or not result.person.email:
            left_out.append(_named(result))
            continue
        message = _message(data.title, result, page_of(result) if result.folder else "")
        messages.append(START + message.as_bytes(policy=MAILBOX) + b"\n")
    return Feedback(b"".join(messages), len(messages), tuple(left_out))


def _message(title: str, result: Result, page: str) -> EmailMessage:
    assert result.person is not None
    name = " ".join(printable(result.person.name).split())
    score = score_text(result)
    message = EmailMessage(policy=default)
    message["To"] = " ".join(printable(result.person.email).split())
    message["Subject"] = f"{' '.join(printable(title).split())}: {score}"
    points = [
        f"  {line.name}: {amount(line.points)} of {amount(line.max_points)}"
        + f". {line.by_staff}" * bool(line.by_staff)
        for line in lines_of(result)
    ]
    parts = [f"Hello {name},", f"you have {score}.", summary_of(result), "\n".join(points)]
    attached = "The attached report explains each test. Open it in a browser." * bool(page)
    parts += [next_step(result), attached]
    message.set_content("\n\n".join(filter(None, parts)) + "\n", cte="quoted-printable")
    if page:
        message.add_attachment(page, subtype="html", filename=PAGE, cte="base64")
    return message


def _zip(
    data: ClassResults,
    page_of: Pages,
    files_of: Callable[[Result, str], Iterator[tuple[str, bytes]]],
) -> Feedback:
    files: dict[str, bytes] = {}
    left_out = []
    for result in data.results:
        if result.score is None:
            continue
        found = dict(files_of(result, page_of(result))) if result.folder else {}
        files |= found
        if not found:
            left_out.append(_named(result))
    return Feedback(zipped(files), len(files), tuple(left_out))


def _named(result: Result) -> str:
    """Return a result's name; that of a person who handed in nothing is only an id."""
    absent = result.person if not result.folder else None
    return absent.label if absent else result.submission


def _in_canvas(result: Result, page: str) -> Iterator[tuple[str, bytes]]:
    uploads = [
        name for name in result.facts.uploads if (m := CANVAS.fullmatch(name)) and m["upload"]
    ]
    if uploads:
        yield uploads[-1], _as_upload(uploads[-1], result, page)


def _as_upload(name: str, result: Result, page: str) -> bytes:
    """Return a report in the format that a file's name promises."""
    plain = name.lower()
    if plain.endswith(".zip"):
        return zipped({PAGE: page.encode()})
    if plain.endswith(ARCHIVES):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            member = tarfile.TarInfo(PAGE)
            member.size = len(page.encode())
            archive.addfile(member, io.BytesIO(page.encode()))
        return buffer.getvalue()
    if PurePosixPath(plain).suffix in (".html", ".htm"):
        return page.encode()
    comments = _as_comments(result)
    if plain.endswith(".ipynb"):
        cell = {"cell_type": "raw", "metadata": {}, "source": comments}
        notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
        return json.dumps(notebook).encode()
    return comments.encode()


def _as_comments(result: Result) -> str:
    """Return the points and messages as comments of a Python file."""
    parts = [score_text(result), summary_of(result), next_step(result)]
    for line in lines_of(result):
        text = f"\n{line.text}" * bool(line.text)
        parts.append(f"\n{line.name}: {amount(line.points)} of {amount(line.max_points)}{text}")
    lines = "\n".join(filter(None, parts)).splitlines()
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def _in_moodle(result: Result, page: str) -> Iterator[tuple[str, bytes]]:
    for name in result.facts.uploads[:1]:
        if found := MOODLE.fullmatch(name):
            if found["file"]:  # a download without folders
                yield name.removesuffix(found["file"]) + PAGE, page.encode()
            else:
                yield f"{name}/{PAGE}", page.encode()
