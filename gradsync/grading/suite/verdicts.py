"""Turn the outcome of a test into its verdict: pure functions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gradsync.grading.suite.time_budget import NotRun
from gradsync.ranks import RankFailure
from gradsync.ranks.protocol import events
from gradsync.records import Diagnosis, Observation, Printed, Status, Verdict
from gradsync.reports.text import printable
from gradsync.testing.assertions import Mistake

MAX_TEXT = 8_000  # characters; a usual text with its traceback has a quarter of that
NOT_RUN = "This test was not run because earlier tests of the exercise reached their time limits."
MAX_DRAWN = 5_000  # events; enough to draw the last collectives of each rank
REFUSED = pytest.StashKey[
    Mapping[str, str]
]()  # in pytest's config: the files that are refused, and why
# Mistakes that a function without a body can't make.
SEEN_AT_WORK = ("forbidden-shortcut", "tampering")
MAX_LINES = 20  # of a rank: the last ones
MAX_LINE = 200  # characters
MAX_BLOCKS = 8  # ranks, or groups of ranks with the same output
NOISE = re.compile(  # what gloo and torch's sockets print when a group starts, and C++ frames
    r"\[Gloo\] Rank \d+ is connected to |\[[IW]\d{4} [\d:.]+ \w+\.cpp:\d+\] \[c10d\] "
    r"|frame #\d+: |Exception raised from \w+ at |<omitting python frames>"
)


class MissingFile(Exception):  # noqa: N818 - not an error of the grader
    """A file of the course is missing from the submission, or can't be read; the text names it."""


def verdict_id(file: Path, test: str) -> str:
    """Return the id of a test's verdict: "phase1/trainer::test_rank_0_prints"."""
    return f"{file.parent.name}/{file.stem.removeprefix('test_')}::{test}"


def exercise_of(test: pytest.Item) -> str:
    """Return the id of the exercise that a test belongs to, or ""."""
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
    """Return the verdict of a test that raised `error`, or passed.

    `seen` are the test's runs. `folder` contains the files under test; it is removed from texts.
    `stubs` are the names without a body in the learner's files: an exercise of such a name counts
    as not written yet if its test fails. The other arguments are as in `Verdict`.
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
        return failure.status, error.summary(), failure.diagnosis
    if isinstance(error, MissingFile):
        return "missing", str(error), Diagnosis("missing-name", (), str(error))
    if isinstance(error, NotRun):
        return "timeout", NOT_RUN, Diagnosis("too-slow", (), NOT_RUN)
    # The exception's text is not shown: it may contain code or values of a hidden test.
    kind = type(error).__name__
    return (
        "error",
        f'"{title}" could not be checked: the returned value has an unexpected type or structure '
        f"({kind}). Compare it with the docstring of the exercise.",
        None,
    )


def _is_for_lack(status: Status, diagnosis: Diagnosis | None) -> bool:
    """Return whether a test may have failed because nothing is written yet."""
    if status in ("passed", "missing", "unfinished"):
        return False
    return diagnosis is None or not (diagnosis.whole_file or diagnosis.code in SEEN_AT_WORK)


def _unfinished(missing: str, exercise: str) -> str:
    if exercise in (missing, f"{exercise.partition('/')[0]}/{missing}"):
        return f"{exercise} is not written yet."
    return f"{exercise} needs {missing}, which is not written yet."


def _cut(text: str) -> str:
    """Return a text that is short enough for a report: a submission can make it very long."""
    more = len(text) - MAX_TEXT
    return f"{text[:MAX_TEXT]}... ({more:,} more characters)" if more > 0 else text


def _cut_diagnosis(diagnosis: Diagnosis) -> Diagnosis:
    where = None if diagnosis.where is None else _cut(diagnosis.where)
    return replace(diagnosis, explanation=_cut(diagnosis.explanation), where=where)


def last_lines(texts: Sequence[str], folder: str = "") -> tuple[Printed, ...]:
    """Return the parts of the ranks' output to show.

    Args:
        texts: by rank, stdout and stderr in order.
        folder: the folder of the files under test, which differs each time; it is removed.
    """
    groups: dict[tuple[tuple[str, ...], int], list[int]] = {}
    for rank, text in enumerate(texts):
        lines = _lines(text.replace(folder, "") if folder else text)
        if lines:
            shown = tuple(_cut_line(line) for line in lines[-MAX_LINES:])
            groups.setdefault((shown, len(lines) - len(shown)), []).append(rank)
    blocks = [Printed(tuple(ranks), *said) for said, ranks in groups.items()]
    return tuple(blocks[:MAX_BLOCKS])


def _lines(text: str) -> list[str]:
    lines = printable(text).splitlines()
    return [line.rstrip() for line in lines if line.strip() and not NOISE.match(line)]


def _cut_line(line: str) -> str:
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"
