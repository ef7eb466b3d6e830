"""Untrusted side: the differences between compared values that a failed `assert` shows."""

from __future__ import annotations

import sys
from typing import Any


def install() -> None:
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
