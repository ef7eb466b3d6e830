"""Describe why a notebook's cell failed, and which variables remain."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from gradsync.records import Failure, Observation, Status
from gradsync.reports.templating import template
from gradsync.reports.text import printable
from gradsync.reports.timeline import collectives
from gradsync.text import ranks_text, verb

MAX_NAMES = 12  # of variables that are lost
MAX_SEVERAL = 8  # different exceptions of one cell that are shown

_TITLES: dict[Status, str] = {
    "deadlock": "Deadlock",
    "error": "Exception",
    "crashed": "A rank ended",
    "unfinished": "Not written yet",
}


@dataclass(frozen=True, slots=True)
class CellFailure:
    """A cell that failed, or that the user stopped."""

    seen: Observation
    stopped: str | None  # a text on the ranks when the user stopped them
    lost: tuple[int, ...]  # ranks that were replaced by new processes
    new_group: bool  # whether the next cell has a new process group
    late: tuple[int, ...] = ()  # the lost ranks that could not be interrupted
    lost_variables: tuple[str, ...] = ()  # of the lost ranks
    goes_on: bool = False  # whether other ranks are still running the cell

    @property
    def summary(self) -> str:
        """The code of the mistake and its ranks, in one line."""
        failure = self.seen.failure
        if failure is None:
            return "stopped"
        ranks = f" ({ranks_text(self.ranks)})" if self.ranks else ""
        return f"{failure.diagnosis.code}{ranks}, explained above"

    @property
    def title(self) -> str:
        failure = self.seen.failure
        return "Stopped" if failure is None else _TITLES.get(failure.status, "Failed")

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that the failure is about."""
        return tuple(sorted({rank for failure in self._each for rank in failure.diagnosis.ranks}))

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The explanation of each part, with its traceback or ""."""
        each = [(f.diagnosis.explanation, f.traceback) for f in self._each[:MAX_SEVERAL]]
        if more := self._each[MAX_SEVERAL:]:
            ranks = sorted(rank for failure in more for rank in failure.diagnosis.ranks)
            each.append((f"{ranks_text(ranks)} raised further exceptions.", ""))
        if self.stopped:
            each.append(
                (f"You stopped the other ranks. {self.stopped}" if each else self.stopped, "")
            )
        return [(text[:1].upper() + text[1:], traceback) for text, traceback in each]

    @property
    def _each(self) -> tuple[Failure, ...]:
        failure = self.seen.failure
        return () if failure is None else failure.several or (failure,)

    @property
    def state(self) -> str:
        """Which ranks keep their variables, and whether the next cell has a new process group."""
        if self.goes_on:
            return "Other ranks are still running. The stop button ends the cell on all ranks."
        texts = []
        if self.lost:
            texts += [self._lost_text, "Run the cells again that define these variables."]
        if len(self.lost) < self.seen.world_size:
            texts.append(f"{'The other' if self.lost else 'All'} ranks keep their variables.")
        if self.new_group:
            texts.append("The next cell has a new process group.")
        elif self.seen.failure and self.seen.failure.diagnosis.code == "group-not-initialised":
            texts.append("`%ranks reset` starts new ranks with a process group and no variables.")
        return " ".join(texts)

    @property
    def _lost_text(self) -> str:
        processes = verb(self.lost, "is a new process, so its", "are new processes, so their")
        names = ", ".join(self.lost_variables[:MAX_NAMES])
        if (more := len(self.lost_variables) - MAX_NAMES) > 0:
            names += f" and {more} more"
        variables = f"variables ({names})" if names else "variables"
        text = f"{ranks_text(self.lost).capitalize()} {processes} {variables} and imports are lost."
        if self.late:
            text = f"{ranks_text(self.late).capitalize()} could not be interrupted. {text}"
        return text


def plain(failed: CellFailure) -> str:
    """Return the failure as text for a terminal."""
    lines = []
    for text, traceback in failed.parts:
        lines += [text, *("  " + line for line in traceback.splitlines())]
    return printable("\n".join([f"{failed.title}: {lines[0]}", *lines[1:], failed.state]))


def html(failed: CellFailure) -> str:
    """Return the failure as HTML for a notebook, with the timeline of the ranks' collectives."""
    failure = failed.seen.failure
    drawing = collectives.render(failed.seen.events, failed.seen.world_size)
    return _PAGE.render(
        failed=failed,
        diagnosis=failure.diagnosis if failure else None,
        drawing=Markup(drawing),  # ElementTree has escaped all text in it
    )


_PAGE = template("cell_failure.html.j2")
