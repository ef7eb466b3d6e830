"""A folder of grades. Only this module knows its files and writes to it.

    OUT/NAME/report.json         the record of a grade: the report, whole
    OUT/NAME/grader-failed.json  instead: a report of why the grader failed on a submission
    OUT/NAME/report.html         a page of the report, with the corrections of staff
    OUT/NAME/submission/         the files that were graded
    OUT/gradebook.csv            a line for each submission
    OUT/class.html               the page of the class
    OUT/changes.csv              the points that changed when submissions were graded again
    OUT/roster.csv               from staff: the people of the class
    OUT/overrides.csv            from staff: points that replace the points of the tests
    OUT/.class.json              what the download says about the submissions
    OUT/.grading.json            the seed of the class, and the folder of its course
    OUT/.grading.lock            one grader at a time writes to the folder

Pages and the gradebook are made from the other files, and never read. Each file is written whole or
not at all, so a grader may be killed at any time: what has a report.json is graded.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from gradsync.class_records import Facts
from gradsync.course import whole_files
from gradsync.course.catalogue import Course, find_course
from gradsync.errors import UnusableInput
from gradsync.records import Origin, Report, Verdict
from gradsync.reports import report_json
from gradsync.reports.report_json import UnreadableReportError

REPORT, FAILURE, PAGE = "report.json", "grader-failed.json", "report.html"
FILES = "submission"
GRADEBOOK, CLASS_PAGE = "gradebook.csv", "class.html"
ROSTER, OVERRIDES, CHANGES = "roster.csv", "overrides.csv", "changes.csv"
FACTS, STATE, LOCK = ".class.json", ".grading.json", ".grading.lock"
SEED_BYTES = 6  # too many seeds for a rank to guess by trying
UNREADABLE = "its report.json is damaged, or an earlier version wrote it: grade it again"
# Characters that some file systems refuse, and the names of the class's files in the same folder.
_TAKEN = r"^(?=(?:gradebook|roster|overrides|changes)\.csv$|class\.html$)."
_UNSAFE = re.compile(rf"[^\w. @+-]|^\.|\.$|{_TAKEN}", re.IGNORECASE)
_MAX_NAME = 200  # bytes; most file systems allow 255
_HALF_WRITTEN = re.compile(r"\..+\.[0-9a-f]{8}")  # as `whole_files` names them


class FolderInUse(UnusableInput):
    """Another grader is writing to the folder."""


class _State(msgspec.Struct):
    """The content of `.grading.json`."""

    seed: int = -1
    course: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """A stored report without the parts that only its page needs, and the digest of the file."""

    report: Report
    digest: str


class GradeStore:
    """A folder of grades. It reads each report once, and remembers what results need of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._records: dict[str, Record] | None = None
        self._verdicts: dict[Verdict, Verdict] = {}  # one object for equal verdicts of a class

    @contextmanager
    def locked(self, seconds: float = 0.0) -> Iterator[None]:
        """Lock the folder against other graders; the system releases it with this process.

        Raises:
            FolderInUse: another grader still has it locked after so many seconds.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / LOCK)
        try:
            lock.acquire(timeout=seconds)
        except Timeout:
            raise FolderInUse(
                f"Another grader is writing to {self.folder}. Wait until it has finished, or use "
                "another folder."
            ) from None
        try:
            yield
        finally:
            lock.release()

    @property
    def seed(self) -> int | None:
        """The seed of the grades in the folder, or None if it has none."""
        seed = self._state().seed
        return seed if seed >= 0 else None

    @property
    def course(self) -> Path | None:
        """The folder of the course in which the grades were made, or None if it is not known."""
        course = self._state().course
        return Path(course) if course else None

    def remember(self, course: Path) -> None:
        """Store the folder of the course, for commands that are called elsewhere."""
        self._write_state(course=str(course))

    def _state(self) -> _State:
        try:
            return msgspec.json.decode((self.folder / STATE).read_bytes(), type=_State)
        except (OSError, ValueError, msgspec.MsgspecError):
            return _State()  # there is no file, or it is damaged

    def _write_state(self, **changed: int | str) -> None:
        state = msgspec.structs.replace(self._state(), **changed)
        self.write(STATE, msgspec.json.encode(state))

    def settle_seed(
        self, given: int | None = None, *, fresh: bool = False, others: bool = False
    ) -> int:
        """Return the seed for a run, and store it as the folder's seed.

        It is not stored if the folder has grades of `others` from a different seed, because these
        would then have to be graded again.

        Args:
            given: the seed that the user asked for.
            fresh: everything is graded again, so a new seed is drawn.
            others: the folder has grades that are kept.
        """
        kept = self.seed
        seed = given
        if seed is None:
            seed = draw_seed() if kept is None or (fresh and not others) else kept
        if seed != kept and (kept is None or not others):
            self._write_state(seed=seed)
        return seed

    def remove_leftovers(self) -> None:
        """Remove half-written files of a killed grader; no other one may be writing."""
        for path in self.folder.rglob(".*"):
            if _HALF_WRITTEN.fullmatch(path.name):
                path.unlink()

    def records(self) -> Mapping[str, Record]:
        """Return the records by the name of their folder."""
        if self._records is None:
            files = (self.folder.glob(f"*/{name}") for name in (REPORT, FAILURE))
            places = {path.parent.name for found in files for path in found}
            read = ((place, self._read(place)) for place in sorted(places))
            self._records = {place: record for place, record in read if record is not None}
        return self._records

    def report(self, place: str) -> Report:
        """Return the report in a folder, whole.

        Raises:
            UnreadableReportError: it is damaged, or was written by an earlier version.
        """
        return report_json.decode((self.folder / place / REPORT).read_bytes())

    def reusable(self, submission: str, origins: Iterable[Origin], seed: int) -> Report | None:
        """Return the report of a submission, if it has grades of these origins and this seed."""
        place = folder_name(submission)
        record = self._read(place) if self._records is None else self._records.get(place)
        if record is None or record.report.problem or record.report.seed != seed:
            return None
        return record.report if set(origins) <= set(record.report.origins) else None

    def graded(self, submission: str) -> Report | None:
        """Return the stored report of a submission, whole, or None if there is no grade."""
        with suppress(FileNotFoundError, UnreadableReportError):
            return self.report(folder_name(submission))
        return None

    def phases(self) -> set[str]:
        """Return the phases that the grades in the folder are of.

        A grade from before the grader failed counts, too: it may be the only one.
        """
        found: set[str] = set()
        for record in self.records().values():
            report = record.report
            earlier = self.graded(report.submission) if report.problem else report
            found |= set(earlier.phases if earlier else ())
        return found

    def save(
        self, report: Report, page: str = "", files: Mapping[str, bytes] | None = None
    ) -> None:
        """Store a report, its page and files, or why the grader failed; report.json comes last."""
        place = folder_name(report.submission)
        content = report_json.encode(report)
        if report.problem:
            self.write(f"{place}/{FAILURE}", content)
        else:
            self._write_sources(place, files or {}, {each.path for each in report.prints})
            if page:
                self.write(f"{place}/{PAGE}", page)
            self.write(f"{place}/{REPORT}", content)
            (self.folder / place / FAILURE).unlink(missing_ok=True)
        if self._records is not None:
            self._records[place] = self._record(report, content)

    def page(self, submission: str) -> Path:
        """Return the path of a submission's page."""
        return self.folder / folder_name(submission) / PAGE

    def sources(self, place: str) -> dict[str, bytes]:
        """Return the files of a submission that were graded, by path; those that are stored."""
        root = self.folder / place / FILES
        paths = sorted(path for path in root.glob("*/*.py") if path.is_file())
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}

    def _write_sources(
        self, place: str, files: Mapping[str, bytes], kept: Collection[str] = ()
    ) -> None:
        """Write graded files, and remove those of an earlier attempt that are not kept."""
        for path in self.sources(place).keys() - files.keys() - set(kept):
            (self.folder / place / FILES / path).unlink()
        for path, content in files.items():
            self.write(f"{place}/{FILES}/{path}", content)

    def copy(self, place: str, source: GradeStore) -> None:
        """Copy the files of a submission from another folder of grades."""
        self._write_sources(place, source.sources(place))
        for name in (PAGE, FAILURE, REPORT):
            if (source.folder / place / name).is_file():
                self.write(f"{place}/{name}", (source.folder / place / name).read_bytes())
            elif name == FAILURE:
                (self.folder / place / name).unlink(missing_ok=True)
        self._records = None

    def facts(self) -> dict[str, Facts]:
        """Return the facts on submissions by name; none if the file is missing or damaged."""
        try:
            content = (self.folder / FACTS).read_bytes()
            rows = msgspec.json.decode(content, type=dict[str, list[Facts]])["submissions"]
        except (OSError, ValueError, LookupError, msgspec.MsgspecError):
            return {}
        return {row.submission: row for row in rows}

    def update_facts(self, new: Sequence[Facts] = (), others: Sequence[Facts] = ()) -> None:
        """Add facts of a download, and drop those of graded submissions that staff have removed.

        Attempts of the same learners in previous downloads no longer count.

        Args:
            new: on the submissions that are graded now.
            others: on the rest of the class; used for learners who are not known yet.
        """
        records = self.records()
        known = {each.learner for each in (*self.facts().values(), *new)}
        known |= {record.report.submission for record in records.values()}
        added = [each for each in others if each.learner not in known]
        latest = {each.submission: each for each in (*new, *added)}
        learners = {each.learner for each in latest.values()}
        kept = {
            name: replace(each, counts=each.counts and each.learner not in learners)
            for name, each in self.facts().items()
            if folder_name(name) in records or not each.graded
        }
        self._write_facts(kept | latest)

    def merge_facts(self, others: Iterable[GradeStore]) -> None:
        """Add the facts of other folders of grades."""
        facts = self.facts()
        for other in others:
            facts |= other.facts()
        self._write_facts(facts)

    def read_text(self, name: str) -> str | None:
        """Return the text of a file of staff, or None if there is none."""
        path = self.folder / name
        return path.read_text(encoding="utf-8-sig") if path.is_file() else None

    def write(self, name: str, content: str | bytes) -> None:
        """Replace a file: a crash leaves the previous one."""
        data = content.encode() if isinstance(content, str) else content
        whole_files.write_whole(self.folder / name, data)

    def _write_facts(self, facts: Mapping[str, Facts]) -> None:
        records = self.records()
        marked = {
            name: replace(each, graded=folder_name(name) in records)
            for name, each in sorted(facts.items())
        }
        if marked != self.facts():
            self.write(FACTS, msgspec.json.encode({"submissions": list(marked.values())}))

    def _read(self, place: str) -> Record | None:
        """Return the record in a folder; a file that can't be read is a failure for this reason."""
        for name in (FAILURE, REPORT):
            with suppress(FileNotFoundError):
                content = (self.folder / place / name).read_bytes()
                try:
                    return self._record(report_json.decode(content), content)
                except UnreadableReportError:
                    names = {folder_name(name): name for name in self.facts()}
                    failure = Report(names.get(place, place), 0, 0.0, (), problem=UNREADABLE)
                    return self._record(failure, content)
        return None

    def _record(self, report: Report, content: bytes) -> Record:
        short = (replace(v, seconds=0.0, events=(), output=()) for v in report.verdicts)
        verdicts = tuple(self._verdicts.setdefault(verdict, verdict) for verdict in short)
        return Record(replace(report, verdicts=verdicts), hashlib.sha256(content).hexdigest())


def course_of(folder: Path) -> Course:
    """Return the course of the working folder, or else the one in which grades were made.

    So the due time in its course.toml counts wherever a command is called.

    Args:
        folder: a folder of grades, or the folder of one submission in it.

    Raises:
        CourseError: there is none.
    """
    places = (folder, folder.resolve().parent)
    known = next((course for place in places if (course := GradeStore(place).course)), None)
    return find_course(known=known, carried=True)


def draw_seed() -> int:
    return secrets.randbelow(2 ** (8 * SEED_BYTES))


def folder_name(submission: str) -> str:
    """Return a unique folder name for a submission that all file systems allow."""
    name = _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", submission) or "%"
    data = name.encode()
    if len(data) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(data).hexdigest()[:16]
    return f"{data[:_MAX_NAME].decode(errors='ignore')}%{digest}"
