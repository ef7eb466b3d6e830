"""Describe why a notebook's cell failed, and which variables remain."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from gradsync.records import Observation, Status
from gradsync.reports import timeline
from gradsync.reports.templating import template
from gradsync.reports.text import printable
from gradsync.text import ranks_text, verb

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
    stopped: str | None  # what the ranks were doing when the user stopped them
    lost: tuple[int, ...]  # ranks that were replaced by new processes
    new_group: bool  # whether the next cell has a new process group

    @property
    def summary(self) -> str:
        """The code of the mistake and its ranks, in one line."""
        failure = self.seen.failure
        if failure is None:
            return "stopped"
        ranks = f" ({ranks_text(failure.diagnosis.ranks)})" if failure.diagnosis.ranks else ""
        return f"{failure.diagnosis.code}{ranks}, explained above"

    @property
    def title(self) -> str:
        failure = self.seen.failure
        return "Stopped" if failure is None else _TITLES.get(failure.status, "Failed")

    @property
    def explanation(self) -> str:
        failure = self.seen.failure
        texts = [] if failure is None else [failure.diagnosis.explanation]
        if self.stopped:
            more = "" if failure is None else "You stopped the other ranks. "
            texts.append(more + self.stopped)
        return " ".join(texts)

    @property
    def traceback(self) -> str:
        return self.seen.failure.traceback if self.seen.failure else ""

    @property
    def state(self) -> str:
        """Which ranks keep their variables, and whether the next cell has a new process group."""
        texts = []
        if self.lost:
            who = ranks_text(self.lost).capitalize()
            new = verb(self.lost, "is a new process, so its", "are new processes, so their")
            texts.append(
                f"{who} {new} variables and imports are lost. Run the cells that define them again."
            )
        if len(self.lost) < self.seen.world_size:
            texts.append(f"{'The other' if self.lost else 'All'} ranks keep their variables.")
        if self.new_group:
            texts.append("The next cell has a new process group.")
        elif self.seen.failure and self.seen.failure.diagnosis.code == "group-not-initialised":
            texts.append("`%ranks reset` starts new ranks with a process group and no variables.")
        return " ".join(texts)


def plain(failed: CellFailure) -> str:
    """Return the failure as text for a terminal."""
    trace = ["  " + line for line in failed.traceback.splitlines()]
    return printable("\n".join([f"{failed.title}: {failed.explanation}", *trace, failed.state]))


def html(failed: CellFailure) -> str:
    """Return the failure as HTML for a notebook, with the timeline of the ranks' collectives."""
    failure = failed.seen.failure
    drawing = timeline.render(failed.seen.events, failed.seen.world_size)
    return _PAGE.render(
        failed=failed,
        diagnosis=failure.diagnosis if failure else None,
        drawing=Markup(drawing),  # ElementTree has escaped all text in it
    )


_PAGE = template("cell_failure.html.j2")
