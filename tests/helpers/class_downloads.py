"""A class as learners hand it in, in the form of each system's download.

Each learner has what they uploaded, and what a fair assistant would give for it. The course is
`two_phases`: a function `double` in each of two phases, with 100 points each.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from download_samples import git
from small_course import EXERCISES, PLAIN_SUITE, RIGHT, WRONG, write_course

from gradsync.course.catalogue import Course

ONE, TWO = "phase1/template_trainer.py", "phase2/template_trainer.py"
BOTH = {ONE: RIGHT, TWO: RIGHT}
UNWRITTEN = 'def double(number):\n    raise NotImplementedError("phase1/double")\n'
NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'


@dataclass(frozen=True)
class Learner:
    """A learner, the uploaded files, the fair points, and what a person must be told."""

    name: str
    uploads: Mapping[str, bytes]  # by the name of the file
    points: tuple[float, float] = (100.0, 100.0)  # of each phase
    attention: str = ""  # a part of the text under "Needs attention"; "": nothing to look at
    late: bool = False

    @property
    def family_first(self) -> str:
        """The name as in Canvas's downloads: "lovelaceada"."""
        given, family = self.name.split(" ", 1)
        return f"{family}{given}".lower().replace(" ", "")


class _Unflagged(zipfile.ZipInfo):
    """A name in UTF-8 without the flag that says so, as Info-ZIP and macOS write it."""

    def _encodeFilenameFlags(self) -> tuple[bytes, int]:  # noqa: N802 - zipfile's name
        return self.filename.encode(), self.flag_bits & ~0x800


def zipped(
    files: Mapping[str, str | bytes], kind: type[zipfile.ZipInfo] = zipfile.ZipInfo
) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            info = kind(name)
            info.filename = name  # ZipInfo replaces backslashes on Windows only
            archive.writestr(info, content)
    return buffer.getvalue()


def tarred(files: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content.encode())
            archive.addfile(member, io.BytesIO(content.encode()))
    return buffer.getvalue()


def inside(folder: str, files: Mapping[str, str] = BOTH) -> dict[str, str]:
    return {f"{folder}/{name}": content for name, content in files.items()}


def _loose(source: str) -> bytes:
    return zipped({"template_trainer.py": source})


NO_FILES, UNREAD = "none of the course's files", "unreadable: "
LEARNERS = (
    Learner("Ada Lovelace", {"solution.zip": zipped(BOTH)}),
    Learner("Emmy Noether", {"solution.tar.gz": tarred(inside("emmy"))}),
    Learner("Alan Turing", {"a.zip": zipped({ONE: WRONG, TWO: RIGHT})}, (0.0, 100.0)),
    Learner("Grace Hopper", {"phase-1.zip": _loose(RIGHT), "phase-2.zip": _loose(RIGHT)},
            attention="is phase1/template_trainer.py"),
    Learner("Linus Berg", {"phase1.zip": zipped({ONE: RIGHT}), "phase2.zip": zipped({TWO: RIGHT})}),
    Learner("Barbara Li", {"work.zip": zipped({"Phase1/template_trainer.py": RIGHT, TWO: RIGHT})},
            attention="Phase1/template_trainer.py is phase1/template_trainer.py"),
    Learner("Edsger Vos", {"repo-main.zip": zipped(inside("repo-main/src"))}),
    Learner("Sofja Kowal", {"s.zip": zipped({"phase1/template_trainer (1).py": RIGHT, TWO: RIGHT})},
            attention="template_trainer (1).py is phase1/template_trainer.py"),
    Learner("Srini Rao", {"mac.zip": zipped({**inside("hw"), "__MACOSX/hw/phase1/._x": b"\0",
                                             "hw/phase1/._template_trainer.py": b"\0\5\x16"})}),
    Learner("Bill Win", {"win.zip": zipped({n.replace("/", "\\"): s for n, s in BOTH.items()})},
            attention="is phase1/template_trainer.py"),
    Learner("Jürgen Müller", {"Übung.zip": zipped(inside("Übung"), _Unflagged)}),
    Learner("Ned Book", {"week1.ipynb": NOTEBOOK.encode()}, (0.0, 0.0), "gradsync nbgrade"),
    Learner("Pan Das", {"p.zip": zipped({ONE: f"import pandas\n{RIGHT}", TWO: RIGHT})},
            (0.0, 100.0), "No module named 'pandas'"),
    Learner("Emp Ty", {"empty.zip": zipped({})}, (0.0, 0.0), "it is empty"),
    Learner("Ra Rar", {"rar.zip": b"Rar!\x1a\x07\x01\x00 whatever"}, (0.0, 0.0), "rar"),
    Learner("Uni Code", {"u.zip": zipped({ONE: RIGHT.encode("utf-16"), TWO: RIGHT})},
            (0.0, 100.0), "is saved as UTF-16"),
    Learner("Two Folders", {"t.zip": zipped({**inside("a"), **inside("b", {ONE: WRONG})})},
            (0.0, 0.0), "in several folders"),
    Learner("Old Version", {"o.zip": zipped({**BOTH, f"old/{ONE}": WRONG})},
            attention="old/phase1/template_trainer.py"),
    Learner("Read Me", {"readme.txt": b"I will hand it in tomorrow."}, (0.0, 0.0), NO_FILES),
    Learner("Not Yet", {"n.zip": zipped({ONE: UNWRITTEN, TWO: UNWRITTEN})}, (0.0, 0.0)),
    Learner("Half Done", {"h.zip": zipped({ONE: RIGHT})}, (100.0, 0.0), "phase2"),
    Learner("La Te", {"late.zip": zipped(BOTH)}, late=True),
    Learner("Boma Crlf", {"b.zip": zipped({ONE: RIGHT.replace("\n", "\r\n").encode("utf-8-sig"),
                                           TWO: RIGHT})}),
    Learner("Wei Zhang", {"wei.zip": zipped(BOTH)}),
    Learner("Wei Zhang", {"zhang.zip": zipped({ONE: WRONG, TWO: WRONG})}, (0.0, 0.0)),
)  # fmt: skip


def two_phases(root: Path) -> Course:
    first = "\n\n\n@exercise".join(PLAIN_SUITE.split("\n\n\n@exercise")[:2])  # one test
    write_course(root, first)
    return write_course(root, first.replace("phase1/", "phase2/"), EXERCISES, phase="phase2")


def canvas(folder: Path) -> None:
    """Write Canvas's download: all uploads in one folder."""
    folder.mkdir()
    for number, learner in enumerate(LEARNERS):
        for place, (file, content) in enumerate(learner.uploads.items()):
            late = "LATE_" * learner.late
            name = (
                f"{learner.family_first}_{late}{9100 + number}_{55000 + 10 * number + place}_{file}"
            )
            (folder / name).write_bytes(content)


def moodle(folder: Path) -> None:
    """Write Moodle's download: a folder for each learner."""
    for number, learner in enumerate(LEARNERS):
        own = folder / f"{learner.name}_{9100 + number}_assignsubmission_file"
        own.mkdir(parents=True)
        for file, content in learner.uploads.items():
            (own / file).write_bytes(content)


def gradescope(folder: Path) -> None:
    """Write Gradescope's export: it has unpacked what was uploaded, and names people in a file."""
    lines = ["---"]
    for number, learner in enumerate(LEARNERS):
        _unpack(learner, folder / f"submission_{9100 + number}")
        lines += [f"submission_{9100 + number}:", "  :submitters:", f"  - :name: {learner.name}"]
        lines += [f"    :sid: '{9100 + number}'", "  :created_at: 2026-10-30 20:53:49.186494000 Z"]
    (folder / "submission_metadata.yml").write_text("\n".join([*lines, ""]))


def clones(folder: Path) -> None:
    """Write clones of repositories, as GitHub Classroom makes them: `week3-LOGIN`."""
    for number, learner in enumerate(LEARNERS):
        own = folder / f"week3-{learner.family_first}{number}"
        _unpack(learner, own)
        git(own, "init", "--quiet")
        git(own, "add", "--all")
        git(own, "commit", "--quiet", "--allow-empty", "-m", "x")


def _unpack(learner: Learner, folder: Path) -> None:
    """Write what a learner uploaded; of a single archive, its content."""
    folder.mkdir(parents=True)
    for file, content in learner.uploads.items():
        unpacked = dict(_members(content)) if len(learner.uploads) == 1 else {}
        for name, data in (
            unpacked.items() if unpacked or file == "empty.zip" else [(file, content)]
        ):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


def _members(content: bytes) -> Iterator[tuple[str, bytes]]:
    if content.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for info in archive.infolist():
                flagged = info.flag_bits & 0x800
                name = info.orig_filename
                yield name if flagged else name.encode("cp437").decode(), archive.read(info)
    elif content.startswith(b"\x1f\x8b"):
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for member in archive:
                yield member.name, archive.extractfile(member).read()


def has_git() -> bool:
    return subprocess.run(["git", "--version"], check=False, capture_output=True).returncode == 0
