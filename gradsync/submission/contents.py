"""Sort the entries of a submission by name: files that may count, refused files, and others.

Entries of folders and archives come one by one and are not trusted: names are compared but never
followed, sizes are limited, and a file is read only if its name may count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gradsync.submission.places import SKIPPED, Layout, Place, plain
from gradsync.submission.sources import source_flaw
from gradsync.text import in_list, listed

MAX_FILE = 2**20  # bytes of one source file
MAX_HELD = 16 * MAX_FILE  # bytes of all files whose names may count, together
MAX_ENTRIES = 20_000
TOO_MANY = f"it has more than {MAX_ENTRIES:,} files: hand in the course's files only"
MAX_COPIES = 20  # of a file of the course, in different folders
MAX_NAME = 255  # characters; no file of a course has a longer name
FOLDER = "is a folder"  # instead of a file
NO_ANSWERS = {"notebooks", ".ipynb_checkpoints", "data", *SKIPPED}  # folders
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
    order: int = 0  # of two entries for the same place, the one with the larger number counts


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry that may be a file of the course."""

    name: str
    place: Place
    order: int
    source: bytes | None  # None: it is refused
    refused: str = ""  # why; "is a link"

    @property
    def rank(self) -> tuple[int, int, bool]:
        """The key that is smallest for the file that counts: late, near the top, exactly named."""
        return -self.order, self.place.depth, not self.place.exact


@dataclass(slots=True)
class Contents:
    """The entries that may count, and the names of the others."""

    layout: Layout
    candidates: dict[str, Candidate] = field(default_factory=dict)  # by name
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

    def chosen(self, phases: Sequence[str]) -> tuple[dict[str, Candidate], list[str]]:
        """Return the entry for each file of these phases that is there, and notes on doubts.

        Raises:
            Unreadable: it is not clear which of several different files counts.
        """
        groups: dict[str, list[Candidate]] = {}
        for target, candidate in self._targets(phases):
            groups.setdefault(target, []).append(candidate)
        found: dict[str, Candidate] = {}
        notes: list[str] = []
        for target, group in groups.items():
            group.sort(key=lambda each: (each.rank, each.name))
            found[target] = best = group[0]
            others = [each for each in group[1:] if each.source not in (None, best.source)]
            rivals = [each for each in others if each.rank == best.rank]
            if rivals or len(group) > MAX_COPIES:
                raise Unreadable(_conflict([best, *(rivals or group)]))
            notes += _doubts(target, best, others)
        return found, notes

    def instead(self, phases: Collection[str], ending: str) -> set[str]:
        """Return other files that may hold answers of these phases, such as notebooks.

        Args:
            phases: the phases.
            ending: a regular expression for the end of a file's name, without gaps.
        """
        found = set()
        for name in self.others:
            *folders, last = name.split("/")
            phase = self.layout.phase_in("".join((*folders[-1:], last)))
            mine = not phase or phase in phases
            if re.search(f"({ending})$", plain(last)) and mine and not NO_ANSWERS & set(folders):
                found.add(name)
        return found

    def meddlers(self, tops: Collection[str]) -> set[str]:
        """Return the names of modules and pytest settings that could affect a run if unpacked."""
        found = set()
        for name in self.others:
            top = max((each for each in tops if name.startswith(each)), key=len, default="")
            parts = name.removeprefix(top).split("/")
            start = 1 if parts[0] in self.layout.phases and len(parts) > 1 else 0
            first, is_last = parts[start], len(parts) == start + 1
            is_module = is_last and first.endswith(MODULES) and not first.startswith("._")  # macOS
            if first in SETTINGS | SHADOWS or is_module:
                found.add(top + "/".join(parts[: start + 1]))
        return found

    def _targets(self, phases: Sequence[str]) -> Iterable[tuple[str, Candidate]]:
        """Yield the files that each entry may be: "phase1/template_trainer.py".

        Phases share file names. So files that are in no phase's folder belong to the first phase
        that has all their names, unless their folder's name contains a phase: "phase2_solution".
        """
        loose: dict[tuple[str, int], set[str]] = {}
        for each in self.candidates.values():
            if not each.place.phase:
                loose.setdefault((each.place.top, each.order), set()).add(each.place.file)
        files = {phase: self.layout.files(phase) for phase in phases}
        for each in self.candidates.values():
            place = each.place
            if place.phase:
                wanted = files.get(place.phase, ())
                names = [name for name in wanted if place.file in ("", name)]
                yield from ((f"{place.phase}/{name}", each) for name in names)
            else:
                together = loose[place.top, each.order]
                owners = [phase for phase in phases if together <= set(files[phase])]
                named = self.layout.phase_in(place.top.rstrip("/").rpartition("/")[2])
                owner = named or (owners or list(phases))[0]
                if place.file in files.get(owner, ()):
                    yield f"{owner}/{place.file}", each

    def _take(self, name: str, entry: Entry) -> None:
        place = self.layout.place(name)
        if place is None:
            self.others.add(name)
        elif not place.file:  # a phase's folder
            if entry.flaw != FOLDER:
                self._add(name, place, entry, refused=entry.flaw or "is not a folder")
        elif name in self.candidates:
            self._add(name, place, entry, refused="occurs more than once: hand in one")
        else:
            try:
                self._add(name, place, entry, self._read(entry))
            except Refused as why:
                self._add(name, place, entry, refused=str(why))

    def _add(
        self,
        name: str,
        place: Place,
        entry: Entry,
        source: bytes | None = None,
        refused: str = "",
    ) -> None:
        self.candidates[name] = Candidate(name, place, entry.order, source, refused)

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


def refused_files(found: Mapping[str, Candidate]) -> dict[str, str]:
    """Return, for each file of the course that was refused, the reason."""
    return {
        target: f"{printed(each.name)} {each.refused}"
        for target, each in found.items()
        if each.source is None
    }


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


def _doubts(target: str, best: Candidate, others: Sequence[Candidate]) -> list[str]:
    """Return notes on what was assumed about a file: its name, and which of several counts."""
    notes = []
    if others:
        names = listed(printed(each.name) for each in others[:3])
        notes.append(f"assumed: {printed(best.name)} counts as {target}, and not {names}")
    elif not best.place.exact and best.place.file:
        notes.append(f"assumed: {printed(best.name)} is {target}")
    return notes


def _conflict(rivals: Sequence[Candidate]) -> str:
    tops = {each.place.top for each in rivals}
    if len(tops) > 1:
        return f"the course's files are in several folders ({listing(tops)}): hand in one folder"
    return f"these files differ: {listing({each.name for each in rivals})}. Hand in one of them"
