"""Frozen, plain data on runs, tests and submissions.

All other parts of the package create or read these records: ranks make an `Observation` from
`Event`s, `gradsync.testing.rules` makes a `Diagnosis` from it, the pytest plugin a `Verdict`, and
grading a `Report`, which a folder of grades keeps as `report.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

Status = Literal[
    "passed", "failed", "error", "deadlock", "timeout", "crashed", "missing", "unfinished"
]
EventKind = Literal["enter", "wait", "go_on", "exit"]
GradeStatus = Literal["graded", "unreadable", "grader-failed"]
FIRST_PHASE = "phase1"  # each course has it; commands assume it for an exercise without a phase


@dataclass(frozen=True, slots=True)
class Collective:
    """A rank's call of `torch.distributed`: the arguments that must agree, and the place."""

    op: str  # "all_reduce", "broadcast", "send", ...
    group: str  # the process group's name; each group counts its own collectives
    members: tuple[int, ...]  # global ranks of the group, in group order
    shapes: tuple[tuple[int, ...], ...] = ()  # of this rank's input tensors
    dtype: str | None = None  # "float32"
    reduce: str | None = None  # "SUM"
    root: int | None = None  # global rank: the src or dst of a broadcast, reduce, gather or scatter
    peer: int | None = None  # global rank of the other end of a send or recv; None: any rank
    tag: int = 0
    sends: tuple[int, ...] = ()  # elements that go to each member, in an all_to_all
    receives: tuple[int, ...] = ()  # elements that each member is expected to send
    ranks: tuple[int, ...] = ()  # the list that is passed to new_group
    strides: tuple[tuple[int, ...], ...] = ()  # of the tensors, unless all are contiguous
    label: str | None = None  # "fc2.bias.grad", if the tensor belongs to a model
    via: str | None = None  # "DistributedDataParallel", if the user's code called this instead
    where: str | None = None  # "template_trainer.py:91"
    callers: tuple[str, ...] = ()  # the user's functions that led there: "train", "evaluate"
    by_test: bool = False  # the test's function calls it, not the file under test
    after: str | None = None  # "ValueError at train.py:9: no batch", if a `finally` calls it after


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a collective on one rank, as the rank itself reported it.

    `enter` is sent before the call, `wait` when a thread begins to block on it, `go_on` when that
    thread stops waiting before the call is complete, `exit` when it is complete for this rank.
    `call` counts the rank's collectives from 0.
    """

    rank: int
    kind: EventKind
    call: int
    seconds: float  # since the start of the run
    thread: int
    others: int = 0  # further threads of this rank that could still enter a collective
    collective: Collective | None = None  # with `enter` only
    touched: bool = False  # with `exit`: the rank changed the input before completion


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A known mistake: its code from the contract's list, its ranks, and an explanation."""

    code: str
    ranks: tuple[int, ...]
    explanation: str
    where: str | None = None  # "template_trainer.py:91"
    guide: str | None = None  # a heading of GUIDELINES.md
    whole_file: bool = False  # the file can't be imported, which fails all its tests
    vague: bool = False  # it names a symptom; another test of the exercise may know the mistake


@dataclass(frozen=True, slots=True)
class Failure:
    """The root cause of a failed run of ranks."""

    status: Status
    diagnosis: Diagnosis
    exception: str | None = None  # the name of its type, if a rank raised
    detail: str | None = None  # the exception's message
    traceback: str = ""  # the frames of the user's own files, innermost last
    collective: Collective | None = None  # the one that the others wait in
    waiting: tuple[int, ...] = ()  # the ranks that wait there
    graph: tuple[str, ...] = ()  # of a deadlock: a line for each rank, with the ranks it waits for
    several: tuple[Failure, ...] = ()  # if ranks raised different exceptions: one of each


@dataclass(frozen=True)
class Observation(Sequence[Any]):
    """The observation of one run of N ranks. As a sequence, it has the ranks' return values."""

    world_size: int
    values: tuple[Any, ...]  # by rank; None for a rank without an answer
    events: tuple[Event, ...]
    output: tuple[str, ...]  # by rank: stdout and stderr in order
    seconds: float
    failure: Failure | None = None
    answered: tuple[int, ...] = ()  # ranks whose value arrived
    warnings: tuple[Diagnosis, ...] = ()  # if it succeeded: calls with an uncertain outcome

    def __getitem__(self, rank: Any) -> Any:
        return self.values[rank]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def collectives(self, rank: int) -> list[Collective]:
        """The collectives that `rank` entered, in order."""
        return [e.collective for e in self.events if e.rank == rank and e.collective is not None]


@dataclass(frozen=True, slots=True)
class Printed:
    """The last lines of output of some ranks, which all printed the same."""

    ranks: tuple[int, ...]
    lines: tuple[str, ...]
    omitted: int = 0  # number of earlier lines


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one test on a submission."""

    id: str  # "phase1/trainer::test_gradients_become_their_mean"
    exercise: str  # "phase1/NAME"
    file: str  # "phase1/template_trainer.py"
    points: float
    max_points: float
    status: Status
    message: str  # for the learner; "" if passed
    diagnosis: Diagnosis | None = None
    seconds: float = 0.0
    title: str = ""  # the test's docstring
    guide: str = ""  # the heading of GUIDELINES.md on the exercise
    world_size: int = 0  # of the run with `events`; 0 without a run
    events: tuple[Event, ...] = ()
    output: tuple[Printed, ...] = ()  # of the same run, if the test failed
    given: tuple[str, ...] = ()  # exercises; with our functions, the test passes and has points
    review: tuple[str, ...] = ()  # "FILE:LINE CODE text" for each finding in the exercise's code
    causes: tuple[str, ...] = ()  # other exercises, because of which this test may have failed

    @property
    def phase(self) -> str:
        return self.exercise.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Origin:
    """Digests of what a phase's grade depends on: with the same seed, they give the same grade."""

    phase: str  # "phase1"
    submission: str  # of its name, files and notes
    course: str  # of suites, exercises, the package, and the versions of Python and torch
    sandboxed: bool  # whether the ranks ran in a sandbox


@dataclass(frozen=True, slots=True)
class CodePrint:
    """Digests of a file, which show how similar it is to others (see `grading.similar`)."""

    path: str  # "phase1/template_trainer.py"
    digest: str  # of its words, without comments
    size: int  # number of sequences of words that its template does not have
    hashes: tuple[int, ...]  # the smallest ones of these sequences, in order


@dataclass(frozen=True, slots=True)
class Report:
    """The results of all tests on a submission, or the reason why the grader failed."""

    submission: str
    seed: int
    seconds: float
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()  # on refused, ignored and missing files, one line each
    command: str = "gradsync grade"  # followed by the seed, it repeats the report
    origins: tuple[Origin, ...] = ()  # of each phase; (): a report that is shown but not stored
    graded_at: datetime | None = None
    prints: tuple[CodePrint, ...] = ()  # of its files
    problem: str = ""  # why the grader failed; then there are no verdicts
    traceback: str = ""  # if the problem was unexpected

    @property
    def score(self) -> float:
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def max_score(self) -> float:
        return sum(verdict.max_points for verdict in self.verdicts)

    @property
    def sandboxed(self) -> bool:
        """Whether the ranks ran in a sandbox, as far as a stored report says."""
        return all(origin.sandboxed for origin in self.origins)

    @property
    def status(self) -> GradeStatus:
        """Whether there is a grade: "unreadable" if no file could be read, and one was refused."""
        if self.problem:
            return "grader-failed"
        nothing_there = all(verdict.status == "missing" for verdict in self.verdicts)
        is_refused = any(note.startswith(("unreadable:", "refused:")) for note in self.notes)
        return "unreadable" if nothing_there and is_refused else "graded"

    @property
    def moment(self) -> float:
        """When it was made, in seconds of Unix time; 0.0 if that is unknown."""
        return self.graded_at.timestamp() if self.graded_at else 0.0

    @property
    def phases(self) -> dict[str, float]:
        """The points of each phase, such as "phase1"."""
        return self._sums(lambda verdict: verdict.points)

    @property
    def maxima(self) -> dict[str, float]:
        """The possible points of each phase."""
        return self._sums(lambda verdict: verdict.max_points)

    def _sums(self, points_of: Callable[[Verdict], float]) -> dict[str, float]:
        points: dict[str, float] = {}
        for verdict in self.verdicts:
            points[verdict.phase] = points.get(verdict.phase, 0.0) + points_of(verdict)
        return points
