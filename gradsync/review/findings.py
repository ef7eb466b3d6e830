"""Rules and their findings."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from gradsync.review.flow.program import Program
from gradsync.review.flow.project import Source
from gradsync.review.flow.values import Step


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A mistake in a file: its place, the reason why it is wrong, and what to do."""

    path: str
    line: int  # from 1
    column: int  # from 1
    code: str  # "DDP001"
    reason: str
    remedy: str
    end_line: int = 0
    end_column: int = 0
    function: str = ""  # the name of the function that contains the line; "" for the module

    @property
    def text(self) -> str:
        """The reason and the remedy."""
        return f"{self.reason} {self.remedy}"


@dataclass(frozen=True, slots=True)
class Hit:
    """A place that a rule found."""

    node: ast.AST
    source: Source
    reason: str
    remedy: str = ""  # if it differs from the rule's remedy
    function: str = ""
    sure: bool = True  # if not, it is reported only if the user selects the rule


def at(step: Step, reason: str, remedy: str = "", *, sure: bool = True) -> Hit:
    """Return the hit of a call."""
    return Hit(step.node, step.source, reason, remedy, step.function, sure)


Find = Callable[[Program], Iterator[Hit]]
Applies = Callable[[Program], bool]
Kind = Literal["mistake", "possible mistake", "cost"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of mistake."""

    code: str
    title: str  # the mistake, as a line of the index
    topic: str  # the line of the checklist that the rule belongs to
    remedy: str
    applies: Applies  # whether a program has code that the rule checks
    find: Find
    kind: Kind = "mistake"  # the other kinds are off unless the user selects them


def rule(
    code: str,
    title: str,
    *,
    topic: str,
    remedy: str,
    applies: Applies,
    kind: Kind = "mistake",
) -> Callable[[Find], Rule]:
    """Make a rule from the function that finds its mistake."""
    return lambda find: Rule(code, title, topic, remedy, applies, find, kind)


def whole(program: Program) -> bool:
    """Return whether the program starts a process group and trains."""
    return program.whole


def whole_script(program: Program) -> bool:
    """Return whether this is so from the entry point on, so that all conditions are known."""
    return program.entry and program.whole


def data_parallel(program: Program) -> bool:
    """Return whether the program trains one model on all ranks."""
    return program.data_parallel


def launched(program: Program) -> bool:
    """Return whether a file uses several ranks, and is not a test, which starts them itself."""
    return any_part(program) and not program.is_test


def any_part(program: Program) -> bool:
    """Return whether a file uses several ranks, even if it is only a part of a program."""
    return any(source.is_distributed for source in program.sources)
