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
from gradsync.grading.classes.corrections import merged_overrides
from gradsync.grading.classes.entries import Entry
from gradsync.grading.classes.regrading import merged_changes
from gradsync.grading.pages import Written, write_class
from gradsync.grading.store import CHANGES, OVERRIDES, ROSTER, SEED_BYTES, STATE, GradeStore
from gradsync.records import Report
from gradsync.submission.contents import listing
from gradsync.text import listed


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


def shared_seed(course_made: Sequence[str], entries: Sequence[Entry]) -> int:
    """Return a seed that all shards of a class have in common; learners can't calculate it.

    Args:
        course_made: the digests of the course and its hidden suites, which learners don't have.
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
    stores = {folder.resolve(): GradeStore(folder) for folder in (*folders, out)}
    target = stores.pop(out.resolve())
    sources = list(stores.values())
    for store in (GradeStore(folder) for folder in folders):
        if store.seed is None:
            raise UnusableInput(f"{store.folder} is not a folder of grades: it has no {STATE}.")
    with ExitStack() as stack:
        for store in (*sources, target):
            stack.enter_context(store.locked())
        target.remove_leftovers()
        _check_phases([target, *sources])
        older = {name for source in sources for name in _copy_grades(source, target)}
        if older:
            warn(f"The latest of several grades counts for {listing(older)}.")
        _merge_tables(sources, target, warn)
        target.remember(course.root)
        written = write_class(target, course)
        for warning in written.warnings:
            warn(warning)
    return written


def _check_phases(stores: Sequence[GradeStore]) -> None:
    """Check that all folders have grades of the same phases; otherwise, points would be lost."""
    graded = {store.folder: tuple(sorted(store.phases())) for store in stores if store.phases()}
    if len(set(graded.values())) > 1:
        of_each = ", ".join(f"{folder}: {listed(phases)}" for folder, phases in graded.items())
        raise UnusableInput(
            f"The folders have grades of different phases ({of_each}). Grade the other phases "
            "into one of the folders: `gradsync grade --add-phase`."
        )


def _copy_grades(source: GradeStore, target: GradeStore) -> Iterator[str]:
    """Copy each grade; yield the folders for which the target has a different, later grade."""
    known = target.records()
    for place, record in source.records().items():
        ours, theirs = known[place].report if place in known else None, record.report
        if ours is None or ours.moment <= theirs.moment:
            target.copy(place, source)
        elif _grade(ours) != _grade(theirs):
            yield place


def _grade(report: Report) -> Report:
    """Return a report without the times that differ whenever it is made."""
    return replace(report, seconds=0.0, graded_at=None, command="")


def _merge_tables(
    sources: Sequence[GradeStore], target: GradeStore, warn: Callable[[str], None]
) -> None:
    """Store the facts, overrides and changes of all folders, and the seed and roster if lacking."""
    every = [target, *sources]
    target.merge_facts(sources)
    if len({store.seed for store in every} - {None}) > 1:
        warn("The folders have different seeds. Grade all shards with the same --seed.")
    tables = [store.folder / OVERRIDES for store in every]
    overrides, warnings = merged_overrides(path for path in tables if path.is_file())
    if overrides:
        target.write(OVERRIDES, overrides)
    for warning in warnings:
        warn(warning)
    changes = [text for store in every if (text := store.read_text(CHANGES))]
    if changes:
        target.write(CHANGES, merged_changes(changes))
    for name in (STATE, ROSTER):
        texts = [text for store in every if (text := store.read_text(name)) is not None]
        if texts and target.read_text(name) is None:
            target.write(name, texts[0])
        if name != STATE and len(set(texts)) > 1:
            warn(
                f"The folders have different versions of {name}. The one in {target.folder} counts."
            )
