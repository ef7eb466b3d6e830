"""`%%ranks` and `%ranks`: cells of a notebook on N ranks that keep their variables."""

from __future__ import annotations

import atexit
import importlib
import shlex
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import MagicArgumentParser

from gradsync.notebook.cell_output import CellOutput
from gradsync.notebook.definitions.ipython import magic_lines
from gradsync.ranks import RankFailure, get_launcher
from gradsync.ranks.host.session import Session
from gradsync.text import ranks_text

# These modules format values on a rank. They are imported before ranks are forked.
FORMATTERS = ("IPython.core.formatters", "IPython.core.pylabtools")
NO_RANKS = "There are no ranks yet. First run a cell that begins with %%ranks 4."
CELL_USAGE = "%%ranks NUMBER [--rank LIST] [--timeline]"
NO_MAGICS = (
    "Ranks run plain Python: IPython's lines with %, ! or ? do not work on them. Move this line to "
    "a cell without %%ranks. On ranks, use subprocess.run for a command, time.perf_counter for a "
    "duration, help() for help."
)
LINE_USAGE = "%ranks [status | reset | pull NAME | push NAME]"


class CellFailed(Exception):  # noqa: N818 - the user's cell failed, not this package
    """A cell did not finish on every rank; the reason has already been shown."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@dataclass(frozen=True, slots=True)
class Options:
    """The options on a cell's first line."""

    world_size: int
    ranks: tuple[int, ...]  # the ranks that run the cell
    timeline: bool


class Sessions:
    """The ranks of this notebook by world size, until the kernel ends.

    A cell on 2 ranks does not affect the ranks of a cell on 4.
    """

    def __init__(self) -> None:
        self._by_size: dict[int, Session] = {}
        self._last = 0  # the world size of the last cell
        atexit.register(self.reset)

    @property
    def sizes(self) -> list[int]:
        """The world sizes that have ranks, with the last cell's at the end."""
        return sorted(self._by_size, key=lambda size: size == self._last)

    def of(self, world_size: int) -> Session:
        """Return the ranks of this world size; start them if there are none.

        Raises:
            ValueError: the number of ranks is not allowed.
            LauncherError: the ranks could not be started.
        """
        if world_size not in self._by_size:
            self._by_size[world_size] = Session(world_size)
        self._last = world_size
        return self._by_size[world_size]

    def last(self) -> Session | None:
        """Return the ranks of the last cell."""
        return self._by_size.get(self._last)

    def forget(self, session: Session) -> None:
        """End ranks that can't be used any more."""
        self._by_size = {s: kept for s, kept in self._by_size.items() if kept is not session}
        session.close()

    def reset(self) -> int:
        """End all ranks; return their number."""
        ended = sum(self._by_size)
        for session in list(self._by_size.values()):
            self.forget(session)
        return ended


@magics_class
class RanksMagics(Magics):
    """`%%ranks N` runs a cell on N ranks; `%ranks` lists the ranks and copies values."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self.sessions = Sessions()

    @line_cell_magic
    def ranks(self, line: str, cell: str | None = None) -> Any:
        """Run a cell on N ranks that keep their variables, or show information about the ranks.

        `%%ranks 4` runs the cell on four ranks: separate processes with a gloo process group.
        `rank` and `world_size` are defined there. `%%ranks 4 --rank 1,2` runs it on two of them,
        `%%ranks 4 --timeline` draws the collectives. A deadlock stops the cell at once and is
        explained; the ranks and their variables are kept.

        `%ranks status` lists the ranks and their variables, `%ranks reset` stops them,
        `%ranks pull NAME` copies a variable's value on each rank to the notebook, as a list, and
        `%ranks push NAME` copies a variable of the notebook to each rank.
        """
        if cell is not None:
            return self._run(line, cell)
        command, *names = _words(line) or ["status"]
        if command in ("status", "reset") and not names:
            return self._status() if command == "status" else self._reset()
        if command in ("pull", "push") and len(names) == 1:
            return self._pull(names[0]) if command == "pull" else self._push(names[0])
        raise UsageError(f"Use {LINE_USAGE}, or %%ranks 4 on the first line of a cell.")

    def _run(self, line: str, cell: str) -> None:
        options = _options(line)
        name = f"In [{len(self.shell.user_ns['In']) - 1}]"
        source = "\n" + cell  # lines count from the cell's first line, which contains %%ranks
        _check_syntax(source, name)
        others = self.sessions.sizes
        try:
            session = self.sessions.of(options.world_size)
        except ValueError as problem:
            raise UsageError(str(problem)) from None
        if others and options.world_size not in others:
            print(_other_ranks(options.world_size, others))
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
            raise UsageError(f"No rank has a variable {name!r}. %ranks status lists the variables.")
        if without:
            print(f"{ranks_text(without)}: no variable {name!r}, so the value is None.")
        values = [value.get(name) for value in found]
        self.shell.user_ns[name] = values
        return values

    def _push(self, name: str) -> None:
        if name not in self.shell.user_ns:
            raise UsageError(f"The notebook has no variable {name!r}.")
        try:
            self._last().push(name, self.shell.user_ns[name])
        except TypeError as problem:
            raise CellFailed(str(problem)) from None

    def _last(self) -> Session:
        session = self.sessions.last()
        if session is None:
            raise UsageError(NO_RANKS)
        return session


def _other_ranks(size: int, others: Sequence[int]) -> str:
    """Return a note for the first cell on ranks of this number."""
    these = f"These are {size} other ranks" if size > 1 else "This is another rank"
    return (
        f"{these}, without variables yet. The ranks of %%ranks {others[-1]} and their variables "
        "are kept."
    )


def _check_syntax(source: str, name: str) -> None:
    """Raise a cell's syntax error here, so that it is shown once and not on each rank."""
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
    """Parse the options after `%%ranks`.

    Raises:
        UsageError: the options are invalid, or name ranks that do not exist.
    """
    words = _words(line)
    if not words:
        raise UsageError("The number of ranks is missing. Write it after %%ranks: %%ranks 4")
    parser = MagicArgumentParser(prog="%%ranks", add_help=False)
    parser.add_argument("world_size", type=int)
    parser.add_argument("--rank", default="")
    parser.add_argument("--timeline", action="store_true")
    try:
        given = parser.parse_args(words)
    except UsageError as problem:
        raise UsageError(f"{problem}. Use {CELL_USAGE}") from None
    every_rank = range(given.world_size)
    try:
        ranks = [rank for part in given.rank.split(",") for rank in _span(part)]
    except ValueError:
        raise UsageError(
            f"--rank {given.rank} is not a list of ranks such as 1,2 or 0-3."
        ) from None
    if unknown := set(ranks) - set(every_rank):
        text = f"unknown {ranks_text(unknown)}; ranks are numbered from 0 to {every_rank[-1]}."
        raise UsageError(f"--rank {given.rank}: {text}")
    return Options(given.world_size, tuple(ranks) or tuple(every_rank), given.timeline)


def _span(part: str) -> range:
    """Return the ranks in a text such as "2" or "1-3", or no rank for an empty text.

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
    """Register the magics, and begin to import torch for the ranks and for their values."""
    if RanksMagics.__name__ in shell.magics_manager.registry:  # loaded before: keep the ranks
        return
    get_launcher().warm_up(FORMATTERS)
    threading.Thread(target=importlib.import_module, args=["torch"], daemon=True).start()
    shell.register_magics(RanksMagics)
