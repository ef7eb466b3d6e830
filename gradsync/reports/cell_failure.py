"""Why a notebook's cell did not come to its end on every rank, and which variables remain."""

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
    stopped: str | None  # what the ranks were doing, where the user stopped them
    lost: tuple[int, ...]  # ranks that are new processes now
    new_group: bool  # whether the next cell has a new process group

    @property
    def summary(self) -> str:
        """One line: the mistake's code and its ranks."""
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
            texts.append(
                self.stopped if failure is None else f"you stopped the rest: {self.stopped}"
            )
        return ". ".join(text[:1].upper() + text[1:] for text in texts)

    @property
    def traceback(self) -> str:
        return self.seen.failure.traceback if self.seen.failure else ""

    @property
    def state(self) -> str:
        """Which ranks keep their variables, and whether they have a new process group."""
        texts = []
        if self.lost:
            who = ranks_text(self.lost).capitalize()
            new = verb(self.lost, "is a new process: its", "are new processes: their")
            texts.append(
                f"{who} {new} variables are lost, imports too. Run the cells again that made them."
            )
        if len(self.lost) < self.seen.world_size:
            texts.append(f"{'The other' if self.lost else 'All'} ranks keep their variables.")
        if self.new_group:
            texts.append("The next cell has a new process group.")
        elif self.seen.failure and self.seen.failure.diagnosis.code == "group-not-initialised":
            texts.append("`%ranks reset` starts new ranks with a process group, without variables.")
        return " ".join(texts)


def plain(failed: CellFailure) -> str:
    """The failure for a terminal."""
    trace = ["  " + line for line in failed.traceback.splitlines()]
    return printable("\n".join([f"{failed.title}: {failed.explanation}", *trace, failed.state]))


def html(failed: CellFailure) -> str:
    """The failure for a notebook, with the timeline of the ranks' collectives."""
    failure = failed.seen.failure
    drawing = timeline.render(failed.seen.events, failed.seen.world_size)
    return _PAGE.render(
        failed=failed,
        diagnosis=failure.diagnosis if failure else None,
        drawing=Markup(drawing),  # ElementTree has escaped what came from outside
    )


_PAGE = template("cell_failure.html.j2")
