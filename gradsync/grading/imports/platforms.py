"""Read submissions from the downloads of Canvas, Moodle and Gradescope.

Canvas names files as in `lovelaceada_LATE_1234_5678_solution-1.zip`: the name of the learner,
without spaces, is followed by the ids of the user and of the submission, and by the name of the
file. If grading is anonymous, they begin with `anon_a1B2c`. A text or an address that was handed
in is in `lovelaceada_1234_text.html` or `..._link.html`. Canvas appends a number to the names of
files that are handed in again. The download has the last attempt of each learner only.

Moodle names folders as in `Ada Lovelace_1234_assignsubmission_file_`, or, if the download has no
folders, begins the files' names like this. Since Moodle 4.1, the last underscore is missing. A text
that was handed in is in `..._onlinetext_/onlinetext.html`.

Gradescope has folders, and `submission_metadata.yml`, which names people. It writes the file with
Ruby, so its keys begin with a colon. A group's submission counts for each of its members.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml

from gradsync.class_records import Facts
from gradsync.grading.classes.tables import TableError
from gradsync.submission import is_archive
from gradsync.submission.contents import printed
from gradsync.text import listed

CANVAS = re.compile(
    r"(?:(?P<learner>(?!LATE_|anon_)[^_]+)_(?P<late>LATE_)?(?P<user>\d+)"
    r"|(?P<late_anonymous>LATE_)?(?P<anonymous>anon_[A-Za-z0-9]+))_"
    r"(?:(?P<upload>\d+)_(?P<file>.+)|(?P<entry>text|link)\.html)",
    re.DOTALL,
)
AGAIN = re.compile(r"-\d+(?=\.\w+$)")
MOODLE = re.compile(
    r"(?P<learner>[^_].*?)_(?P<id>\d+)_assignsubmission_(?P<kind>[a-z]+)(_(?P<file>.*))?", re.DOTALL
)
MOODLES_KINDS = ("file", "onlinetext")
CODE = re.compile(r"\b(?:def|class) \w+ ?[(:]|\bimport \w")
EXCERPT = 600  # characters of a text that was handed in
MAX_TEXT = 2**20  # bytes of its page
METADATA = "submission_metadata.yml"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast


@dataclass(frozen=True, slots=True)
class HandedIn:
    """One submission of a download."""

    source: Path | Mapping[str, Path]  # a folder or an archive; or single files by name
    facts: Facts  # with a name for the gradebook; attempts of a learner have the same key
    order: int = 0  # larger for a later attempt; orders attempts without different times
    members: tuple[Path, ...] = ()  # the files or folders of the download that it consists of
    is_alone: bool = True  # the path that the user named has no other submission
    named: Path = Path()  # the path that the user named


def from_canvas(paths: Iterable[Path]) -> Iterator[HandedIn]:
    """Yield the submissions among these paths; each has all files of a user."""
    users: dict[str, list[tuple[re.Match[str], Path]]] = {}
    for path in paths:
        if found := CANVAS.fullmatch(path.name):
            users.setdefault(found["user"] or found["anonymous"], []).append((found, path))
    for user, uploads in users.items():
        uploads.sort(key=lambda pair: int(pair[0]["upload"] or 0))
        files: dict[str, Path] = {}
        for found, path in uploads:
            name = found["file"] or f"{found['entry']}.html"
            if not is_archive(Path(name)):
                name = AGAIN.sub("", name)
            files[name if name not in files else f"upload {found['upload']}/{name}"] = path
        last = uploads[-1][0]
        learner = last["learner"] or last["anonymous"]
        is_late = last["late"] or last["late_anonymous"]
        texts = [text_note(path) for found, path in uploads if found["entry"]]
        yield HandedIn(
            source=files,
            facts=Facts(
                learner,
                learner,
                names=(user, learner),
                notes=(*["Canvas marks it as late"] * bool(is_late), *texts),
                platform="canvas",
                key=user,
            ),
            order=int(last["upload"] or 0),
            members=tuple(path for _, path in uploads),
        )


def from_moodle(paths: Iterable[Path]) -> Iterator[HandedIn]:
    """Yield the submissions among these paths; skip other folders, such as comments."""
    learners: dict[str, list[tuple[re.Match[str], Path]]] = {}
    for path in paths:
        found = MOODLE.fullmatch(path.name)
        if found and found["kind"] in MOODLES_KINDS:
            learners.setdefault(found["id"], []).append((found, path))
    for number, uploads in learners.items():
        learner = uploads[0][0]["learner"]
        work = {found["file"] or "": path for found, path in uploads if found["kind"] == "file"}
        texts = [path for found, path in uploads if found["kind"] == "onlinetext"]
        pages = [path / "onlinetext.html" if path.is_dir() else path for path in texts]
        yield HandedIn(
            source=work.get("") or work or {"onlinetext.html": pages[0]},
            facts=Facts(
                learner,
                learner,
                names=(number, learner),
                notes=tuple(filter(None, map(text_note, pages))),
                platform="moodle",
                key=number,
            ),
            members=tuple(path for _, path in uploads),
        )


def is_other_of_moodle(name: str) -> bool:
    """Return whether a name belongs to something that Moodle adds, such as a comment."""
    found = MOODLE.fullmatch(name)
    return found is not None and found["kind"] not in MOODLES_KINDS


def text_note(page: Path) -> str:
    """Return a note that quotes a text that was handed in on a page of the platform; "" if none."""
    if page.is_symlink() or not page.is_file():
        return ""
    with page.open("rb") as file:
        content = file.read(MAX_TEXT).decode("utf-8", "replace")
    reader = _Text()
    reader.feed(content)
    text = " ".join(" ".join(reader.parts).split())
    kind = "a text with code was" if CODE.search(text) else "a text was"
    return f'{kind} handed in ({page.name}): "{printed(text, EXCERPT)}"' if text else ""


class _Text(HTMLParser):
    """Collects the text of a page, and the addresses of its links."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._skipped = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style", "title"):
            self._skipped = tag
        self.parts += [value for name, value in attrs if tag == "a" and name == "href" and value]

    def handle_endtag(self, tag: str) -> None:
        if tag == self._skipped:
            self._skipped = ""

    def handle_data(self, data: str) -> None:
        if not self._skipped and data.strip() not in self.parts:
            self.parts.append(data)


def from_gradescope(folder: Path) -> Iterator[HandedIn]:
    """Yield the submissions of a folder that has the file of names.

    Raises:
        TableError: the file can't be read.
    """
    path = folder / METADATA
    try:
        content = yaml.load(path.read_bytes(), Loader=LOADER)
        for name, row in content.items():
            if (folder / str(name)).exists():
                yield from _of_members(folder / str(name), row)
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as problem:
        raise TableError(f"{path} can't be read as Gradescope's file of names: {problem}") from None


def _of_members(source: Path, row: dict[str, Any]) -> Iterator[HandedIn]:
    members = row.get(":submitters") or [{":name": source.name}]
    moment = row.get(":created_at")
    if not isinstance(moment, datetime):
        moment = None
    elif not moment.tzinfo:
        moment = moment.replace(tzinfo=timezone.utc)
    names = [str(member.get(":name") or source.name) for member in members]
    for name, member in zip(names, members, strict=True):
        known = [str(member[key]) for key in (":sid", ":email") if member.get(key)]
        facts = Facts(
            name,
            name,
            names=(*known, name),
            handed_in=moment,
            notes=(f"handed in by {listed(names)}",) if len(names) > 1 else (),
            platform="gradescope",
            key=next(iter(known), name),
            group=tuple(names) if len(names) > 1 else (),
        )
        yield HandedIn(source, facts)
