"""What is known about a run, a test and a submission: frozen, plain data.

Everything else in the package either makes these records or reads them:
ranks make an `Observation` out of `Event`s, `gradsync.diagnose` turns it into a
`Diagnosis`, the pytest plugin into a `Verdict`, grading into a `Report`, whose line in the
gradebook is a `Grade`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Status = Literal[
    "passed", "failed", "error", "deadlock", "timeout", "crashed", "missing", "unfinished"
]
STATUSES: tuple[Status, ...] = get_args(Status)
EventKind = Literal["enter", "wait", "go_on", "exit"]
GradeStatus = Literal["graded", "unreadable", "grader-failed"]


@dataclass(frozen=True, slots=True)
class Collective:
    """What one rank asked of `torch.distributed`: the arguments that must agree, and from where."""

    op: str  # "all_reduce", "broadcast", "send", ...
    group: str  # the process group's name; each group counts its own collectives
    members: tuple[int, ...]  # global ranks of the group, in group order
    shapes: tuple[tuple[int, ...], ...] = ()  # of the tensors this rank put in
    dtype: str | None = None  # "float32"
    reduce: str | None = None  # "SUM"
    root: int | None = None  # global rank that a broadcast, reduce, gather or scatter turns on
    peer: int | None = None  # global rank of the other end of a send or recv; None is any
    tag: int = 0
    label: str | None = None  # "fc2.bias.grad", where the tensor is a model's
    where: str | None = None  # "template_trainer.py:91"
    callers: tuple[str, ...] = ()  # the user's functions that led there: "train", "evaluate"
    by_test: bool = False  # the function that runs on the ranks made it, not the file under test


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a collective on one rank, as the rank itself reported it.

    `enter` comes before the call, `wait` when a thread begins to block on it, `go_on` when that
    thread gave up before the call was complete, `exit` when it is complete for this rank.
    `call` counts the rank's collectives from 0.
    """

    rank: int
    kind: EventKind
    call: int
    seconds: float  # since the run began
    thread: int
    others: int = 0  # further threads of this rank that could still enter a collective
    collective: Collective | None = None  # with `enter` only
    touched: bool = False  # with `exit`: the rank changed what it had put in before it was complete


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A known mistake: its code from the contract's list, whose it is, and what shows it."""

    code: str
    ranks: tuple[int, ...]
    explanation: str
    where: str | None = None  # "template_trainer.py:91"
    guide: str | None = None  # a heading of GUIDELINES.md
    whole_file: bool = False  # it can't be imported, whatever a test needs of it


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run of ranks did not come to its end, told once, at its root."""

    status: Status
    diagnosis: Diagnosis
    exception: str | None = None  # the type's name, where a rank raised
    detail: str | None = None  # the exception's own words
    traceback: str = ""  # the frames of the user's own files, innermost last
    collective: Collective | None = None  # the one that the others wait in
    waiting: tuple[int, ...] = ()  # the ranks that wait there
    several: tuple[Failure, ...] = ()  # where ranks raised unlike exceptions: one of each


@dataclass(frozen=True)
class Observation(Sequence[Any]):
    """What one run of N ranks showed. As a sequence it is the values the ranks returned."""

    world_size: int
    values: tuple[Any, ...]  # by rank; None for a rank that did not answer
    events: tuple[Event, ...]
    output: tuple[str, ...]  # by rank: stdout and stderr as they came
    seconds: float
    failure: Failure | None = None
    answered: tuple[int, ...] = ()  # ranks whose value arrived

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
    """The last lines that some ranks printed, all of them the same."""

    ranks: tuple[int, ...]
    lines: tuple[str, ...]
    omitted: int = 0  # lines that came before these


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one test of a suite says of a submission."""

    id: str  # "phase1/trainer::test_every_rank_ends_with_the_mean"
    exercise: str  # "phase1/average_gradients"
    file: str  # "phase1/template_trainer.py", where the learner writes it
    points: float
    max_points: float
    status: Status
    message: str  # what a learner reads; "" when passed
    diagnosis: Diagnosis | None = None
    seconds: float = 0.0
    title: str = ""  # the test's own sentence
    guide: str = ""  # the heading of GUIDELINES.md that the exercise is about
    world_size: int = 0  # of the run that `events` come from; 0 without one
    events: tuple[Event, ...] = ()
    output: tuple[Printed, ...] = ()  # of the same run, where the test failed


@dataclass(frozen=True, slots=True)
class Origin:
    """What a report was made from, as digests: the same with the same seed gives the same grade."""

    submission: str  # of its name, its files, and what was noted of them
    course: str  # of the suites and exercises, and of the package and the torch that ran them
    sandboxed: bool  # whether the ranks were kept apart from the machine


@dataclass(frozen=True, slots=True)
class Report:
    """What a whole suite says of a submission."""

    submission: str
    seed: int
    seconds: float
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()  # what was refused, ignored or missing, a line each
    command: str = "gradsync grade"  # with the seed behind it, it gives the same report again
    origin: Origin | None = None  # None: a report that is shown, and not kept

    @property
    def score(self) -> float:
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def max_score(self) -> float:
        return sum(verdict.max_points for verdict in self.verdicts)

    def of_phase(self, phase: str) -> tuple[Verdict, ...]:
        """The verdicts of "phase1" or "phase2"."""
        return tuple(v for v in self.verdicts if v.exercise.startswith(phase + "/"))


@dataclass(frozen=True, slots=True)
class Grade:
    """A submission's line in the gradebook. Where the grader failed there are no numbers."""

    submission: str
    status: GradeStatus
    score: float | None = None
    max_score: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)  # the points of "phase1", "phase2"
