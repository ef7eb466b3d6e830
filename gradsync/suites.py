"""Pytest on a course's suites, in this process, where nothing else has a say."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

# Only our own plugin, no configuration and no cache. Two of pytest's own plugins only wait for the
# garbage collector at the end, one keeps log records.
ISOLATED = (
    *("--disable-plugin-autoload", "-p", "gradsync.plugin", "-p", "no:cacheprovider"),
    *("-p", "no:unraisableexception", "-p", "no:threadexception", "-p", "no:logging"),
    *("-c", os.devnull, "--import-mode=importlib", "-q"),
)
SHOWN = 4000  # characters of pytest's output
SWEPT_AFTER = 16  # suites, each of which leaves half a MiB
_SUITES = itertools.count(1)


def run_pytest(
    suites: Sequence[Path], root: Path, options: Sequence[str], plugin: object
) -> tuple[int, str]:
    """Run the suites of the course at `root`; return pytest's exit code and the end of its output.

    Args:
        suites: folders of tests.
        root: the course, to which test ids are relative.
        options: pytest's own, and those of `gradsync.plugin`.
        plugin: an object with pytest's hooks.
    """
    said = io.StringIO()
    arguments = [*ISOLATED, f"--rootdir={root}", *options, *map(str, suites)]
    with (
        _no_collecting(),
        _forgetting(suites, root),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        code = pytest.main(arguments, plugins=[plugin])
    return code, said.getvalue()[-SHOWN:]


@contextlib.contextmanager
def _forgetting(suites: Sequence[Path], root: Path) -> Iterator[None]:
    """Drop the suites' modules afterwards.

    pytest names a module by its path in the course and imports no name twice: the next grade in
    this process would run the tests of another course, or those from before an edit.
    """
    prefixes = tuple(".".join([*suite.relative_to(root).parts, ""]) for suite in suites)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.startswith(prefixes)]:
            del sys.modules[name]


@contextlib.contextmanager
def _no_collecting() -> Iterator[None]:
    """Look for no garbage unasked: a suite leaves little, and torch would be gone through.

    That of many suites is looked for at once: what was frozen, Python would not come to by itself.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if next(_SUITES) % SWEPT_AFTER == 0:
            gc.collect()
        if enabled:
            gc.enable()
