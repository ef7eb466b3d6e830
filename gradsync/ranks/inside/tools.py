"""Untrusted side: the tools of a test on a rank: pdb, coverage.py and pytest's comparisons."""

from __future__ import annotations

import bdb
import os
import pdb
import sys
from collections.abc import Callable, Mapping
from typing import Any

# Set by coverage.py, or by hand, for the processes that a test starts.
COVERAGE_ASKED = ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")


def call_with(
    debugger: tuple[int, str] | None,
    rank: int,
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
) -> Any:
    """Call a function; on the rank of the debugger, a `breakpoint()` or an exception opens pdb.

    It opens in the terminal of the process that started the ranks.
    """
    if debugger is None:
        return function(**arguments)
    debugged, terminal = debugger
    if rank != debugged:
        sys.breakpointhook = lambda *_, **__: None
        return function(**arguments)
    descriptor = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
    with os.fdopen(descriptor) as keys, os.fdopen(os.dup(descriptor), "w") as screen:
        debugging = pdb.Pdb(stdin=keys, stdout=screen)
        debugging.prompt = f"(rank {rank}) "
        sys.breakpointhook = lambda *_, **__: debugging.set_trace(sys._getframe(1))
        try:
            return function(**arguments)
        except bdb.BdbQuit:
            raise RuntimeError("the debugger was quit") from None
        except Exception as error:
            print(f"rank {rank} raised {type(error).__name__}: {error}", file=screen)
            trace = error.__traceback__
            debugging.reset()
            debugging.interaction(None, trace.tb_next if trace else None)
            raise


def start_coverage() -> Callable[[], None]:
    """Start to measure; return a function that saves the data: a rank ends with `os._exit`."""
    if not any(name in os.environ for name in COVERAGE_ASKED):
        return lambda: None
    import coverage

    own = coverage.process_startup()

    def save() -> None:
        if own is not None:
            own.stop()
            own.save()

    return save


def show_comparisons() -> None:
    """Make an `assert` that pytest has rewritten show the same differences as in a test's process.

    There, pytest calls a hook of the running test; on a rank, no test is running.
    """
    util = sys.modules.get("_pytest.assertion.util")  # imported by the code of rewritten asserts
    if util is not None:
        util._reprcompare = _explanation  # type: ignore[attr-defined]


class _Config:
    """The part of pytest's configuration that comparisons use: all differences, without colours."""

    @property
    def pluginmanager(self) -> _Config:
        return self

    def has_plugin(self, _name: str) -> bool:
        return False

    def get_terminal_writer(self) -> _Config:
        return self

    def _highlight(self, source: str, lexer: str = "") -> str:  # noqa: ARG002
        return source

    def get_verbosity(self, _kind: str | None = None) -> int:
        return 2

    def getini(self, name: str) -> str:
        return "ndiff" if name == "assertion_text_diff_style" else "0"


def _explanation(op: str, left: Any, right: Any) -> str | None:
    from _pytest.assertion import pytest_assertrepr_compare

    try:
        lines = pytest_assertrepr_compare(config=_Config(), op=op, left=left, right=right)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - another version of pytest: the values alone are shown
        return None
    text = "\n~".join(line.replace("\n", "\\n") for line in lines or ())
    return text.replace("%", "%%") or None
