"""`%%ranks` and `%ranks`: cells of a notebook on N ranks that live from cell to cell."""

from __future__ import annotations

import importlib
import shlex
import threading
import traceback
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import MagicArgumentParser

from gradsync.notebook.definitions.ipython import magic_lines
from gradsync.notebook.ranks_magic.output import CellOutput
from gradsync.notebook.ranks_magic.sessions import Sessions
from gradsync.ranks import RankFailure, get_launcher
from gradsync.ranks.session import Session
from gradsync.reports.text import label

# What shows values on a rank: with it in the process that ranks are forked from, they have it.
FORMATTERS = ("IPython.core.formatters", "IPython.core.pylabtools")
NO_RANKS = "There are no ranks yet: run a cell that begins with %%ranks 4 first."
CELL_USAGE = "%%ranks NUMBER [--rank LIST] [--timeline]"
NO_MAGICS = (
    "Ranks run plain Python: IPython's lines with %, ! or ? do not work on them. Move this line to "
    "a cell without %%ranks. On ranks, use subprocess.run for a command, time.perf_counter for a "
    "duration, help() for help."
)
LINE_USAGE = "%ranks [status | reset | pull NAME | push NAME]"


class CellFailed(Exception):  # noqa: N818 - it is about a cell of the user's, not an error of ours
    """A cell did not come to its end on every rank; all that there is to say has been shown."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@dataclass(frozen=True, slots=True)
class Options:
    """What stands on a cell's first line."""

    world_size: int
    ranks: tuple[int, ...]  # that run the cell
    timeline: bool


@magics_class
class RanksMagics(Magics):
    """`%%ranks N` runs a cell on N ranks; `%ranks` says which there are, and moves values."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.sessions = Sessions()

    @line_cell_magic
    def ranks(self, line: str, cell: str | None = None) -> Any:
        """Run a cell on N ranks that keep their variables, or ask about the ranks.

        `%%ranks 4` runs the cell on four ranks, processes of their own with a gloo process group;
        `rank` and `world_size` are defined there. `%%ranks 4 --rank 1,2` runs it on two of them,
        `%%ranks 4 --timeline` draws the collectives. A deadlock ends the cell at once, with its
        explanation; the ranks and their variables stay.

        `%ranks status` lists the ranks and their variables, `%ranks reset` ends them,
        `%ranks pull NAME` brings a variable's value on each rank to the notebook, as a list, and
        `%ranks push NAME` gives a variable of the notebook to each rank.
        """
        if cell is not None:
            return self._run(line, cell)
        command, *names = _words(line) or ["status"]
        if command in ("status", "reset") and not names:
            return self._status() if command == "status" else self._reset()
        if command in ("pull", "push") and len(names) == 1:
            return self._pull(names[0]) if command == "pull" else self._push(names[0])
        raise UsageError(f"use it as {LINE_USAGE}, or as %%ranks 4 on a cell's first line")

    def _run(self, line: str, cell: str) -> None:
        options = _options(line)
        name = f"In [{len(self.shell.user_ns['In']) - 1}]"
        source = "\n" + cell  # lines count from the cell's first, which %%ranks stands on
        _check_syntax(source, name)
        try:
            session = self.sessions.of(options.world_size)
        except ValueError as problem:
            raise UsageError(str(problem)) from None
        output = CellOutput(options.ranks)
        try:
            outcome = session.run(source, name, options.ranks, output.update)
        except BaseException:
            self.sessions.forget(session)
            raise
        if summary := output.finish(outcome, timeline=options.timeline):
            raise CellFailed(summary)

    def _status(self) -> None:
        if not self.sessions.sizes:
            print(NO_RANKS)
        for size in self.sessions.sizes:
            print(f"{size} ranks:" if size > 1 else "1 rank:")
            for rank, state in enumerate(self.sessions.of(size).status()):
                names = ", ".join(state["variables"]) or "no variables"
                print(f"  rank {rank}, process {state['pid']}: {names}")

    def _reset(self) -> None:
        if not self.sessions.sizes:
            print(NO_RANKS)
            return
        ended = self.sessions.reset()
        print(f"{ended} rank{'s' * (ended != 1)} ended, with all their variables.")

    def _pull(self, name: str) -> list[Any]:
        """Set the notebook's variable to the list of the ranks' values, and return it."""
        try:
            found = self._last().pull(name)
        except RankFailure as failure:
            reason = failure.observation.failure
            raise CellFailed(reason.detail if reason else str(failure)) from None
        without = [rank for rank, value in enumerate(found) if not value]
        if len(without) == len(found):
            raise UsageError(f"no rank has a variable {name!r}; %ranks status lists what they have")
        if without:
            print(f"{label(without)}: no variable {name!r}; None stands for it.")
        values = [value.get(name) for value in found]
        self.shell.user_ns[name] = values
        return values

    def _push(self, name: str) -> None:
        if name not in self.shell.user_ns:
            raise UsageError(f"the notebook has no variable {name!r}")
        try:
            self._last().push(name, self.shell.user_ns[name])
        except TypeError as problem:
            raise CellFailed(str(problem)) from None

    def _last(self) -> Session:
        session = self.sessions.last()
        if session is None:
            raise UsageError(NO_RANKS)
        return session


def _check_syntax(source: str, name: str) -> None:
    """Raise a cell's syntax error here, once: on the ranks it would be one each."""
    try:
        compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as problem:
        magics = magic_lines(source)
        number = next((number for number in magics if number == problem.lineno), None)
        text = "".join(traceback.format_exception_only(problem))
        if number is not None:
            text = f"{name}:{number}: {magics[number].strip()}\n{NO_MAGICS}"
        raise CellFailed(text) from None


def _options(line: str) -> Options:
    """Read what stands behind `%%ranks`.

    Raises:
        UsageError: it can't be read, or names ranks that are none.
    """
    words = _words(line)
    if not words:
        raise UsageError("say how many ranks: %%ranks 4")
    parser = MagicArgumentParser(prog="%%ranks", add_help=False)
    parser.add_argument("world_size", type=int)
    parser.add_argument("--rank", default="")
    parser.add_argument("--timeline", action="store_true")
    try:
        given = parser.parse_args(words)
    except UsageError as problem:
        raise UsageError(f"{problem}. Use it as {CELL_USAGE}") from None
    everyone = range(given.world_size)
    try:
        ranks = [rank for part in given.rank.split(",") for rank in _span(part)]
    except ValueError:
        raise UsageError(f"--rank {given.rank}: write it as 1,2 or 0-3") from None
    if strangers := set(ranks) - set(everyone):
        text = f"there is no {label(sorted(strangers))} among {given.world_size}: they count from 0"
        raise UsageError(f"--rank {given.rank}: {text}")
    return Options(given.world_size, tuple(ranks) or tuple(everyone), given.timeline)


def _span(part: str) -> range:
    """Return the ranks that "2" or "1-3" names; none for nothing.

    Raises:
        ValueError: it is neither.
    """
    if not part.strip():
        return range(0)
    first, _, last = part.partition("-")
    span = range(int(first), int(last or first) + 1)
    if not span:
        raise ValueError("it names no rank")
    return span


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as problem:
        raise UsageError(f"{line.strip()}: {problem}") from None


def load(shell: InteractiveShell) -> None:
    """Bring the magics, and begin to import torch: for the ranks, and for values that come back."""
    if RanksMagics.__name__ in shell.magics_manager.registry:  # loaded again: the ranks stay
        return
    get_launcher().warm_up(FORMATTERS)
    threading.Thread(target=importlib.import_module, args=["torch"], daemon=True).start()
    shell.register_magics(RanksMagics)
