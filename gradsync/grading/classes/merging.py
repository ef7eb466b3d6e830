"""Divide a class among several machines, and merge the folders of grades."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from gradsync.course.catalogue import Course
from gradsync.errors import UnusableInput
from gradsync.grading.classes import facts
from gradsync.grading.classes.entries import Entry
from gradsync.grading.classes.files import Written, write_class
from gradsync.grading.classes.grade_class import lock_folder
from gradsync.grading.classes.overrides import OVERRIDES, merged_overrides
from gradsync.grading.output_files import (
    FACTS,
    FAILURE,
    PAGE,
    REPORT,
    ROSTER,
    STATE,
    grade_folders,
    kept_seed,
    read_failure,
    remove_leftovers,
    write_whole,
)
from gradsync.reports import stored
from gradsync.submission.contents import listing

SEED_BYTES = 6  # as in a randomly drawn seed


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several parts of a class."""

    number: int  # from 1
    count: int

    def part(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return every `count`-th submission, by name; the parts together are all of them."""
        return sorted(entries, key=lambda entry: entry.name)[self.number - 1 :: self.count]


def read_shard(text: str) -> Shard:
    """Return the shard that a user typed, such as "3/40".

    Raises:
        UnusableInput: it is not of this form, or there is no such part.
    """
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    shard = Shard(*map(int, found.groups())) if found else Shard(0, 0)
    if not 1 <= shard.number <= shard.count:
        raise UnusableInput(
            f"--shard {text} is not a part of a class. Write K/N with K from 1 to N, as in 3/40."
        )
    return shard


def shared_seed(course_made: str, entries: Sequence[Entry]) -> int:
    """Return a seed that all shards of a class have in common; learners can't calculate it.

    Args:
        course_made: the digest of the course and its hidden suites, which learners don't have.
        entries: all submissions of the class.
    """
    content = json.dumps([course_made, sorted(entry.name for entry in entries)])
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:SEED_BYTES], "big")


def merge(
    folders: Sequence[Path], course: Course, out: Path, warn: Callable[[str], None]
) -> Written:
    """Copy the grades in several folders into `out`, and write the gradebook of all.

    If several folders have different grades of a submission, the latest one counts.

    Raises:
        UnusableInput: a folder has no grades, is used by a grader, or a table in it is unusable.
    """
    for folder in folders:
        if not (folder / STATE).is_file():
            raise UnusableInput(f"{folder} is not a folder of grades: it has no {STATE}.")
    with ExitStack() as stack:
        for folder in dict.fromkeys(path.resolve() for path in (*folders, out)):
            stack.enter_context(lock_folder(folder))
        remove_leftovers(out)
        sources = [folder for folder in folders if folder.resolve() != out.resolve()]
        older = [name for folder in sources for name in _copy_grades(folder, out)]
        if older:
            warn(f"The latest of several grades counts for {listing(set(older))}.")
        _merge_tables(sources, out, warn)
        written = write_class(out, course)
        for warning in written.warnings:
            warn(warning)
    return written


def _copy_grades(source: Path, out: Path) -> Iterator[str]:
    """Copy each grade, its report.json last, as when it is graded.

    Yields the names of the folders for which `out` has a different, later grade.
    """
    for folder in grade_folders(source):
        target = out / folder.name
        if _graded_at(target) > _graded_at(folder):
            if _grade(target) != _grade(folder):
                yield folder.name
            continue
        target.mkdir(exist_ok=True)
        for name in (PAGE, FAILURE, REPORT):
            if (folder / name).is_file():
                write_whole(target / name, (folder / name).read_text(encoding="utf-8"))
            elif name == FAILURE:
                (target / name).unlink(missing_ok=True)


def _grade(folder: Path) -> object:
    """Return a value to compare grades: the report without its time, or the failure."""
    if failure := read_failure(folder / FAILURE):
        return failure
    report = stored.read((folder / REPORT).read_text("utf-8", "replace"))
    return report and replace(report, seconds=0.0)


def _graded_at(folder: Path) -> float:
    times = [
        path.stat().st_mtime for name in (REPORT, FAILURE) if (path := folder / name).is_file()
    ]
    return max(times, default=0.0)


def _merge_tables(sources: Sequence[Path], out: Path, warn: Callable[[str], None]) -> None:
    """Store the facts and overrides of all folders, and the seed and roster that `out` lacks."""
    known = facts.read_facts(out)
    for folder in sources:
        known |= facts.read_facts(folder)
    write_whole(out / FACTS, facts.render(known))
    seeds = {seed: folder for folder in (*sources, out) if (seed := kept_seed(folder)) is not None}
    if len(seeds) > 1:
        warn("The folders have different seeds. Grade all shards with the same --seed.")
    corrected = [path for folder in (out, *sources) if (path := folder / OVERRIDES).is_file()]
    text, warnings = merged_overrides(corrected)
    if corrected:
        write_whole(out / OVERRIDES, text)
    for warning in warnings:
        warn(warning)
    for name in (STATE, ROSTER):
        texts = [
            (folder / name).read_text(encoding="utf-8-sig")
            for folder in (out, *sources)
            if (folder / name).is_file()
        ]
        if texts and not (out / name).exists():
            write_whole(out / name, texts[0])
        if name != STATE and len(set(texts)) > 1:
            warn(f"The folders have different versions of {name}. The one in {out} counts.")
