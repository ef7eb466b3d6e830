"""Find the submissions in folders and downloads, and group the attempts of each learner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from gradsync.class_records import Facts
from gradsync.course.catalogue import Course
from gradsync.grading.imports import clones, platforms
from gradsync.grading.imports.platforms import HandedIn
from gradsync.submission import find_submissions, submission_name

Keep = Literal["best", "last"]


def found_at(path: Path, course: Course) -> list[HandedIn]:
    """Return the submissions at a path: a single one, or a class of them, in any form.

    Raises:
        SubmissionError: there is no submission at the path.
        TableError: the file of names in a download can't be read.
    """
    path = _inner_download(path)
    if (path / platforms.METADATA).is_file():
        return list(platforms.from_gradescope(path))
    members = find_submissions(
        path, course, lambda name: platforms.CANVAS.fullmatch(name) is not None
    )
    members = [member for member in members if not platforms.is_other_of_moodle(member.name)]
    known = [*platforms.from_moodle(members), *platforms.from_canvas(members)]
    taken = {member for each in known for member in each.members}
    return [*known, *_plain([member for member in members if member not in taken], path)]


def attempts(found: Iterable[HandedIn], *, by_name: bool) -> Iterator[list[HandedIn]]:
    """Yield all attempts of each learner, the earliest first.

    If learners share a name, their keys are appended to it. The roster is searched for this name
    before the shared one. With `by_name`, submissions without a key and with the same name are
    attempts, too.
    """
    groups: dict[object, list[HandedIn]] = {}
    for each in found:
        facts = each.facts
        alone = ("", facts.learner) if by_name else object()
        groups.setdefault(facts.key or alone, []).append(each)
    owners: dict[str, set[str]] = {}
    for group in groups.values():
        owners.setdefault(group[-1].facts.learner, set()).add(group[-1].facts.key)
    for group in groups.values():
        name, key = group[-1].facts.learner, group[-1].facts.key
        learner = f"{name} {key}" if key and len(owners[name]) > 1 else name
        yield sorted((_called(learner, each) for each in group), key=_age)


def _called(learner: str, each: HandedIn) -> HandedIn:
    """Return a submission with a different name of its learner; the old name is tried last."""
    facts = each.facts
    if learner == facts.learner:
        return each
    names = [name for name in facts.names if name != facts.learner]
    names += [learner, facts.learner]
    return replace(each, facts=replace(facts, learner=learner, names=tuple(names)))


def _inner_download(path: Path) -> Path:
    """Return the download that is the only content of a folder, or else the path itself.

    Programs that unpack an archive often create a folder around its content.
    """
    try:
        [inner] = [each for each in path.iterdir() if not each.name.startswith((".", "__"))]
        if inner.is_symlink() or not inner.is_dir():
            return path
        names = {each.name for each in inner.iterdir()}
    except (OSError, ValueError):  # it is not a folder, or has more than one member
        return path
    known = (platforms.CANVAS, platforms.MOODLE)
    is_download = platforms.METADATA in names or any(
        pattern.fullmatch(name) for name in names for pattern in known
    )
    return inner if is_download else path


def _age(each: HandedIn) -> tuple[bool, float, int]:
    moment = each.facts.handed_in
    return (moment is not None, moment.timestamp() if moment else 0.0, each.order)


def _plain(members: Sequence[Path], folder: Path) -> Iterator[HandedIn]:
    """Yield submissions that are not from a known platform; clones often share a prefix."""
    names = [submission_name(member) for member in members]
    for member, name in zip(members, names, strict=True):
        if member != folder and clones.is_clone(member):
            known = (name, name.removeprefix(_shared(names)))
            yield HandedIn(member, Facts(name, name, known, clones.commit_time(member)))
        else:
            yield HandedIn(member, Facts(name, name, (name,)))


def _shared(names: Sequence[str]) -> str:
    """Return the prefix that all names share, up to a hyphen: "week3-" of "week3-ada"."""
    first, last = min(names), max(names)
    length = next(
        (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), 0
    )
    return first[: first.rfind("-", 0, length) + 1]
