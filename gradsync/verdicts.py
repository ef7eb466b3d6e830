"""From how a test ended to its verdict: a pure function."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gradsync.judge import Mistake
from gradsync.printed import last_lines
from gradsync.ranks import RankFailure, events
from gradsync.records import Diagnosis, Observation, Status, Verdict
from gradsync.time_budget import NotRun

MAX_TOLD = 8_000  # characters of a text; an honest one, traceback and all, has a quarter of them
NOT_RUN = "not run: earlier tests of this exercise ran into their time limits"
MAX_DRAWN = 5_000  # events kept to draw the last collectives of each rank, which are fewer
REFUSED = pytest.StashKey[Mapping[str, str]]()  # of pytest's config: files, and why not
SEEN_AT_WORK = ("forbidden-shortcut", "tampering")  # mistakes that an empty body can't make


class MissingFile(Exception):  # noqa: N818 - a learner's file is missing, nothing of ours failed
    """The submission lacks a file of the contract, or it can't be read; the text says which."""


def verdict_id(file: Path, test: str) -> str:
    """Return what the verdict of a test is known by: "phase1/trainer::test_rank_0_prints"."""
    return f"{file.parent.name}/{file.stem.removeprefix('test_')}::{test}"


def exercise_of(test: pytest.Item) -> str:
    """Return the exercise that a test is of, "" if it is of none."""
    marker = test.get_closest_marker("exercise")
    return str(marker.args[0]) if marker is not None else ""


def verdict_of(
    error: BaseException | None,
    *,
    id: str,
    exercise: str,
    file: str,
    max_points: float,
    title: str,
    seconds: float,
    seen: Sequence[Observation],
    folder: str = "",
    guide: str = "",
    stubs: Collection[str] = (),
) -> Verdict:
    """Return the verdict of a test that ended with `error`, or well.

    `seen` are the test's runs, and `folder` is where the files under test lie: no report names it.
    `stubs` are the names in the learner's file without a body: what fails in an exercise of such a
    name is not written yet. The rest is as in the `Verdict`.
    """
    status, message, diagnosis = _judge(error, exercise, title)
    if exercise.rpartition("/")[2] in stubs and _is_for_lack(status, diagnosis):
        status, message = "unfinished", _unfinished(exercise, exercise)
        diagnosis = Diagnosis("unfinished", (), message)
    last = seen[-1] if seen and status != "passed" else None
    return Verdict(
        id=id,
        exercise=exercise,
        file=file,
        points=max_points if status == "passed" else 0.0,
        max_points=max_points,
        status=status,
        message=_cut(message),
        diagnosis=None if diagnosis is None else _cut_diagnosis(diagnosis),
        seconds=seconds,
        title=title,
        guide=guide,
        world_size=seen[-1].world_size if seen else 0,
        events=events.last(last.events, MAX_DRAWN) if last else (),
        output=last_lines(last.output, folder) if last else (),
    )


def _judge(
    error: BaseException | None, exercise: str, title: str
) -> tuple[Status, str, Diagnosis | None]:
    if error is None:
        return "passed", "", None
    if isinstance(error, Mistake):
        return "failed", str(error), error.diagnosis
    if isinstance(error, RankFailure) and error.observation.failure is not None:
        failure = error.observation.failure
        if failure.status == "unfinished":
            return "unfinished", _unfinished(failure.detail or "", exercise), failure.diagnosis
        return failure.status, str(error), failure.diagnosis
    if isinstance(error, MissingFile):
        return "missing", str(error), Diagnosis("missing-name", (), str(error))
    if isinstance(error, NotRun):
        return "timeout", NOT_RUN, Diagnosis("too-slow", (), NOT_RUN)
    # Nothing of the test itself is shown: a hidden test's code and values stay hidden.
    kind = type(error).__name__
    return "error", f'"{title}" could not be judged: what came back does not fit ({kind})', None


def _is_for_lack(status: Status, diagnosis: Diagnosis | None) -> bool:
    """Tell whether a test may have failed because nothing is written yet."""
    if status in ("passed", "missing", "unfinished"):
        return False
    return diagnosis is None or not (diagnosis.whole_file or diagnosis.code in SEEN_AT_WORK)


def _unfinished(missing: str, exercise: str) -> str:
    if exercise in (missing, f"{exercise.partition('/')[0]}/{missing}"):
        return f"{exercise} is not written yet"
    return f"{exercise} needs {missing}, which is not written yet"


def _cut(text: str) -> str:
    """Return a text short enough for a report: a submission may have had a say in its length."""
    more = len(text) - MAX_TOLD
    return f"{text[:MAX_TOLD]}... ({more:,} characters more)" if more > 0 else text


def _cut_diagnosis(diagnosis: Diagnosis) -> Diagnosis:
    where = None if diagnosis.where is None else _cut(diagnosis.where)
    return replace(diagnosis, explanation=_cut(diagnosis.explanation), where=where)
