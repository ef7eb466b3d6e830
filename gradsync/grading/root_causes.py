"""Find out which exercise to fix first when several fail: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gradsync.records import Verdict
from gradsync.text import listed, verb

SETTLED = ("passed", "unfinished", "missing")  # statuses that no other exercise can cause


def point_at_causes(
    verdicts: Sequence[Verdict], needs: Mapping[str, Sequence[str]]
) -> tuple[Verdict, ...]:
    """Name, in the message of each failed test, what to fix first.

    These are other exercises, or else another test of the same exercise.
    """
    roots, siblings = point_at_roots(verdicts, needs), point_at_diagnosed(verdicts)
    return tuple(
        root if root != verdict else sibling
        for verdict, root, sibling in zip(verdicts, roots, siblings, strict=True)
    )


def point_at_roots(
    verdicts: Sequence[Verdict], needs: Mapping[str, Sequence[str]]
) -> tuple[Verdict, ...]:
    """Name, in the message of each failed test, the wrong exercises that may have caused it.

    The test's own message is kept: an exercise that builds on a wrong one may be wrong itself.

    Args:
        verdicts: all verdicts of a submission.
        needs: for each exercise, the exercises that it builds on.
    """
    wrong = {verdict.exercise for verdict in verdicts if _is_root(verdict)}
    gaps = {verdict.exercise for verdict in verdicts if verdict.status == "unfinished"}
    return tuple(
        _point(verdict, sorted(_roots(verdict.exercise, needs, wrong | gaps)), gaps)
        if _is_symptom(verdict)
        else verdict
        for verdict in verdicts
    )


def explain_not_run(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Name, in the message of each test that was not run, the test that caused this."""
    first: dict[str, Verdict] = {}
    for verdict in verdicts:
        if verdict.status == "timeout" and verdict.world_size:
            first.setdefault(verdict.exercise, verdict)
    return tuple(
        _due_to(first[verdict.exercise], verdict)
        if verdict.status == "timeout" and not verdict.world_size and verdict.exercise in first
        else verdict
        for verdict in verdicts
    )


def point_at_diagnosed(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Name, in the message of each test without a diagnosis, an earlier test that has one.

    Both tests are of the same exercise, so the mistake that is known may also explain the other.
    """
    known: dict[str, Verdict] = {}
    for verdict in verdicts:
        if verdict.status not in SETTLED and verdict.diagnosis is not None:
            known.setdefault(verdict.exercise, verdict)
    return tuple(
        _after(known[verdict.exercise], verdict)
        if verdict.status == "failed" and verdict.diagnosis is None and verdict.exercise in known
        else verdict
        for verdict in verdicts
    )


def _after(cause: Verdict, verdict: Verdict) -> Verdict:
    text = (
        f'The mistake found by another test, "{cause.title.rstrip(".")}", may be the cause here '
        "too. Fix it first. "
    )
    return replace(verdict, message=text + verdict.message)


def _due_to(cause: Verdict, verdict: Verdict) -> Verdict:
    text = (
        f'This test was not run because another one, "{cause.title.rstrip(".")}", reached its '
        "time limit. Fix the mistake there first."
    )
    known = cause.diagnosis
    return replace(verdict, message=text, diagnosis=known and replace(known, explanation=text))


def _is_symptom(verdict: Verdict) -> bool:
    unloadable = verdict.diagnosis is not None and verdict.diagnosis.whole_file
    return verdict.status not in SETTLED and not unloadable


def _is_root(verdict: Verdict) -> bool:
    """Return whether this may cause other exercises to fail.

    A missing file may not, because a stand-in replaces it.
    """
    missing_name = verdict.status == "missing" and verdict.world_size > 0
    return _is_symptom(verdict) or missing_name


def _roots(exercise: str, needs: Mapping[str, Sequence[str]], wrong: set[str]) -> set[str]:
    """Return the wrong exercises that this one builds on and that build on no other wrong one."""
    found: set[str] = set()
    for below in needs.get(exercise, ()):
        deeper = _roots(below, needs, wrong)
        found |= deeper or ({below} & wrong)
    return found


def _point(verdict: Verdict, roots: Sequence[str], gaps: set[str]) -> Verdict:
    if not roots:
        return verdict
    names = listed(root.partition("/")[2] for root in roots)
    how, do = ("written", "Write") if gaps.issuperset(roots) else ("right", "Fix")
    are, them = verb(roots, "is", "are"), verb(roots, "it", "them")
    text = f"{names} {are} not {how} yet, which may be the cause. {do} {them} first. "
    return replace(verdict, message=text + verdict.message, causes=tuple(roots))
