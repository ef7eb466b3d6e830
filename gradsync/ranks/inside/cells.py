"""Untrusted side: a rank that runs the cells of a notebook, one by one, in one namespace."""

from __future__ import annotations

import ast
import base64
import builtins
import linecache
import os
import pickle
import socket
import sys
from collections.abc import Callable
from functools import partial
from types import CodeType, ModuleType
from typing import Any, ClassVar, NoReturn

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradsync.ranks.inside import watch
from gradsync.ranks.inside.answers import answer_of
from gradsync.ranks.inside.inbox import Inbox
from gradsync.ranks.inside.rendezvous import start_group
from gradsync.ranks.inside.watch.recorder import Recorder
from gradsync.ranks.protocol import wire

Bundle = dict[str, str]  # MIME type -> text; binary data in base64, as in notebooks


class CellRecorder(Recorder):
    """Reports a rank's events until its process group ends."""

    def __init__(self, channel: socket.socket, rank: int, began: float, inbox: Inbox) -> None:
        super().__init__(channel, rank, began)
        self._inbox = inbox
        self._over = False

    def await_go(self) -> None:
        self._inbox.await_go()

    def end(self) -> None:
        """Report no more events: the process group has ended."""
        self._over = True

    def _flush(self, *, asks: bool = False) -> None:
        if self._over or self._inbox.ended:
            self._backlog.clear()
        super()._flush(asks=asks)


class Cells:
    """One rank of a notebook: its namespace, and the commands that it answers."""

    def __init__(self, channel: socket.socket, setup: dict[str, Any]) -> None:
        self._rank, self._world_size = setup["rank"], setup["world_size"]
        self._channel = channel
        self._inbox = Inbox(channel)
        self._recorder = self._new_recorder(setup["began"])
        self._displays = Displays.of_cell = Displays()
        builtins.input = _no_input
        module = ModuleType("__main__")  # where pickle looks for the definitions of cells
        sys.modules["__main__"] = module
        self._namespace = vars(module)
        self._namespace |= {
            "rank": self._rank,
            "world_size": self._world_size,
            "display": self._displays.show,
        }
        self._given = set(self._namespace)

    def serve(self) -> NoReturn:
        """Answer commands, each with one frame, until the notebook ends this process."""
        answers: dict[str, Callable[[wire.Frame], Any]] = {
            "group": self._meet,
            "cell": self._run,
            "push": self._push,
            "pull": self._pull,
            "status": self._status,
        }
        while True:
            frame = self._inbox.commands.get()
            answer = partial(answers[frame.kind], frame)
            head, pieces = answer_of(answer, frame.header["nonce"])
            self._recorder.send(head, *pieces)

    def _new_recorder(self, began: float) -> CellRecorder:
        return CellRecorder(self._channel, self._rank, began, self._inbox)

    def _meet(self, frame: wire.Frame) -> None:
        """Start a new process group, which replaces the group of a cell that was stopped."""
        watch.install().end()
        self._recorder.end()
        if dist.is_initialized():
            dist.destroy_process_group()
        # Ranks identify groups by their number, which an interrupted start may have increased.
        distributed_c10d._world.group_count = 0
        self._inbox.begin_group()
        self._recorder = self._new_recorder(frame.header["began"])
        try:
            self._inbox.run()
            start_group(frame.header["store"], self._rank, self._world_size)
        finally:
            self._inbox.running = False
        watch.install().begin(self._recorder, self._world_size, ())

    def _run(self, frame: wire.Frame) -> dict[str, Any]:
        """Run a cell as a notebook does; return its displays and the names of all variables.

        If this process ends later, the trusted side uses the names to list the lost variables.
        """
        source, name = frame.header["source"], frame.header["name"]
        lines = source.splitlines(keepends=True)
        linecache.cache[name] = (len(source), None, lines, name)  # for tracebacks
        statements, expression = _compiled(source, name)
        self._displays.take()
        try:
            self._inbox.run()
            exec(statements, self._namespace)
            if expression is not None:
                value = eval(expression, self._namespace)
                if value is not None:
                    self._displays.show(value)
        finally:
            self._inbox.running = False
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        return {"shown": self._displays.take(), "variables": self._variables()}

    def _push(self, frame: wire.Frame) -> None:
        _, inputs = pickle.loads(frame.body)
        self._namespace |= inputs

    def _pull(self, frame: wire.Frame) -> dict[str, Any]:
        """Return a dict with the variable's value, or an empty one."""
        name = frame.header["name"]
        return {name: self._namespace[name]} if name in self._namespace else {}

    def _status(self, _: wire.Frame) -> dict[str, Any]:
        """Return this process's id, and the names of the variables that cells made."""
        return {"pid": os.getpid(), "variables": self._variables()}

    def _variables(self) -> list[str]:
        return [
            name
            for name, value in self._namespace.items()
            if name not in self._given
            and not name.startswith("_")
            and not isinstance(value, ModuleType)
        ]


def _no_input(_prompt: object = "") -> NoReturn:
    raise EOFError(
        "input() does not work on ranks. Ask in a cell without %%ranks, and send the answer with "
        "`%ranks push NAME`"
    )


def serve(channel: socket.socket, setup: dict[str, Any]) -> NoReturn:
    """Run a rank of a notebook until the notebook ends it."""
    Cells(channel, setup).serve()


def _compiled(source: str, name: str) -> tuple[CodeType, CodeType | None]:
    """Return a cell's statements, and its last expression unless a semicolon follows it.

    Their frames are named "<cell>": the name "<module>" would mean a file that can't be imported.
    """
    tree = ast.parse(source, name)
    last = tree.body[-1] if tree.body else None
    expression = None
    if isinstance(last, ast.Expr) and not source.rstrip().endswith(";"):
        tree.body.pop()
        expression = compile(ast.Expression(last.value), name, "eval").replace(co_name="<cell>")
    return compile(tree, name, "exec").replace(co_name="<cell>"), expression


class Displays:
    """Collects the values that a cell displays on a rank: its last expression, and `display`."""

    of_cell: ClassVar[Displays | None] = None  # of this rank, if it runs the cells of a notebook

    def __init__(self) -> None:
        self.bundles: list[Bundle] = []
        self._format = _formatter()

    def show(self, *values: Any) -> None:
        """Display values below the printed output: `display` in a rank's namespace."""
        self.bundles += [self._format(value) for value in values]

    def take(self) -> list[Bundle]:
        """Return the values displayed since the last call."""
        bundles, self.bundles = self.bundles, []
        return bundles


def _formatter() -> Callable[[Any], Bundle]:
    try:
        from IPython.core.formatters import DisplayFormatter
        from IPython.core.pylabtools import print_figure
    except ImportError:  # tests may run without IPython; a notebook can't
        return lambda value: {"text/plain": repr(value)}
    formatter = DisplayFormatter()
    formatter.formatters["image/png"].for_type_by_name(
        "matplotlib.figure", "Figure", lambda figure: print_figure(figure, "png", base64=True)
    )

    def bundle(value: Any) -> Bundle:
        forms, _ = formatter.format(value)
        return {mime: _text(data) for mime, data in forms.items()}

    return bundle


def _text(data: Any) -> str:
    return base64.b64encode(data).decode() if isinstance(data, bytes) else str(data)
