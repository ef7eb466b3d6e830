"""Sort the entries of a submission by name: files that may count, refused files, and others.

Entries of folders and archives come one by one and are not trusted: names are compared but never
followed, sizes are limited, and a file is read only if its name may count.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from gradsync.submission.sources import source_flaw
from gradsync.text import in_list

MAX_FILE = 2**20  # bytes of one source file
MAX_HELD = 16 * MAX_FILE  # bytes of all files whose names may count, together
MAX_ENTRIES = 20_000
TOO_MANY = f"it has more than {MAX_ENTRIES:,} files: hand in the course's files only"
MAX_NAME = 255  # characters; no file of a course has a longer name
FOLDER = "is a folder"  # instead of a file
DRIVE = re.compile("[a-z]:", re.IGNORECASE)
SETTINGS = {"pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml"}
SHADOWS = {"torch", "torchvision", "numpy", "pytest", "_pytest"}  # as folders
MODULES = (".py", ".pyc", ".pth", ".so", ".pyd")


class Unreadable(Exception):  # noqa: N818 - not an error of the grader
    """A folder or an archive can't be used at all; the message says why."""


class Refused(Exception):  # noqa: N818 - not an error of the grader
    """A file does not count; the message continues a sentence after its name: "is a link"."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or another named item in a folder or an archive."""

    name: str  # unchecked; without the slash at the end of a folder's name
    size: int  # bytes, as listed
    read: Callable[[], bytes]  # raises Refused; call it before asking for the next entry
    flaw: str = ""  # why it can't count, whatever its name: "is a link"


@dataclass(slots=True)
class Contents:
    """The entries that may count, and the names of the others."""

    phases: Collection[str]  # "phase1"
    wanted: Collection[str]  # "template_trainer.py"
    sources: dict[str, bytes] = field(default_factory=dict)  # by name, "ada/phase1/..." too
    refused: dict[str, str] = field(default_factory=dict)  # name -> why
    others: set[str] = field(default_factory=set)
    _held: int = 0

    def take_all(self, entries: Iterable[Entry]) -> None:
        """Sort the entries of a folder or an archive.

        Raises:
            Unreadable: there are too many, or those that may count are too large together.
            Refused: the folder or archive itself can't be used.
        """
        for count, entry in enumerate(entries, 1):
            if count > MAX_ENTRIES:
                raise Unreadable(TOO_MANY)
            if len(entry.name) <= MAX_NAME:
                self._take(entry.name.removeprefix("./"), entry)

    def folder(self) -> str:
        """Return the folder of the course's files, with a slash at its end: "", or "ada/".

        Raises:
            Unreadable: there are several such folders.
        """
        tops = {self._top(name) for name in (*self.sources, *self.refused)}
        if len(tops) > 1 and "" not in tops:
            listed = listing(tops)
            raise Unreadable(
                f"the course's files are in several folders ({listed}): hand in one folder"
            )
        return "" if "" in tops else next(iter(tops), "")

    def misnamed(self) -> list[tuple[str, str]]:
        """Return names that resemble a name that counts, each with that name."""
        pairs = ((name, _plain(name)) for name in sorted(self.others))
        return [(name, plain) for name, plain in pairs if name != plain and self._may_count(plain)]

    def meddlers(self, top: str) -> set[str]:
        """Return the names of modules and pytest settings that could affect a run if unpacked."""
        found = set()
        for name in self.others - {name for name, _ in self.misnamed()}:
            parts = name.removeprefix(top).split("/")
            start = 1 if parts[0] in self.phases and len(parts) > 1 else 0
            first, is_last = parts[start], len(parts) == start + 1
            if first in SETTINGS | SHADOWS or (is_last and first.endswith(MODULES)):
                found.add(top * name.startswith(top) + "/".join(parts[: start + 1]))
        return found

    def _take(self, name: str, entry: Entry) -> None:
        if name.rpartition("/")[2] in self.phases and self._may_count(name):
            if entry.flaw != FOLDER:
                self.refused[name] = entry.flaw or "is not a folder"
        elif not self._may_count(name):
            self.others.add(name)
        elif name in self.sources or name in self.refused:
            self.sources.pop(name, None)
            self.refused[name] = "occurs more than once: hand in one"
        else:
            try:
                self.sources[name] = self._read(entry)
            except Refused as why:
                self.refused[name] = str(why)

    def _read(self, entry: Entry) -> bytes:
        if entry.flaw:
            raise Refused(entry.flaw)
        if not 0 <= entry.size <= MAX_FILE:
            raise Refused(f"has {entry.size:,} bytes, but at most {MAX_FILE:,} are allowed")
        self._held += entry.size
        if self._held > MAX_HELD:
            raise Unreadable("it has too many files with the names of the course's files")
        source = entry.read()
        if flaw := source_flaw(source):
            raise Refused(flaw)
        return source

    def _may_count(self, name: str) -> bool:
        """Return whether a name is exactly the name of a file or a folder of the course."""
        *folders, last = name.split("/")
        if last in self.phases:
            return len(folders) == 0 or (len(folders) == 1 and _is_top(folders[0]))
        if last not in self.wanted or len(folders) > 2:
            return False
        if len(folders) == 2 and folders[1] not in self.phases:
            return False
        return not folders or _is_top(folders[0])

    def _top(self, name: str) -> str:
        first, slash, _ = name.partition("/")
        return "" if not slash or first in self.phases else f"{first}/"


def listing(names: Collection[str], most: int = 5) -> str:
    """Return the first `most` names, sorted and safe to print, and how many more there are."""
    shown = [in_list(printed(name)) for name in sorted(names)[:most]]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")


def printed(text: str, longest: int = 120) -> str:
    """Return untrusted text on one line: unprintable characters escaped, long text cut."""
    if len(text) > longest:
        text = f"{text[: longest - 20]}...{text[-17:]}"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _is_top(folder: str) -> bool:
    hidden = folder.startswith((".", "__"))  # .git, __MACOSX and ..
    return bool(folder) and not hidden and not DRIVE.fullmatch(folder)


def _plain(name: str) -> str:
    """Return the name that some system may read instead: "phase1/x.py" for "../Phase1//x.py "."""
    text = unicodedata.normalize("NFKC", name.partition("\0")[0]).casefold().replace("\\", "/")
    parts = [part if part in (".", "..") else part.strip().rstrip(".") for part in text.split("/")]
    path = "/".join(part for part in parts if part and not DRIVE.fullmatch(part))
    return posixpath.normpath(f"/{path}")[1:]
