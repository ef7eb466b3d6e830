"""Run pytest on a course's suites in this process, isolated from the user's settings."""

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

from gradsync.course.support import support_of

# Only our plugins, no configuration and no cache. Of the disabled plugins, two run the garbage
# collector at the end, and one keeps log records. Our plugin replaces each test's traceback, which
# takes pytest 50 ms to format with source code.
ISOLATED = (
    *("--disable-plugin-autoload", "-p", "gradsync.pytest_plugin", "-p", "no:cacheprovider"),
    *("-p", "gradsync.grading.suite.plugin"),
    *("-p", "no:unraisableexception", "-p", "no:threadexception", "-p", "no:logging"),
    *("-c", os.devnull, "--import-mode=importlib", "--tb=line", "-q"),
)
SHOWN = 4000  # characters of pytest's output that are kept
SWEPT_AFTER = 16  # suites; each leaves half a MiB of garbage
_SUITES = itertools.count(1)


def run_pytest(
    suites: Sequence[Path], root: Path, options: Sequence[str], plugin: object
) -> tuple[int, str]:
    """Run the suites of the course at `root`; return pytest's exit code and the end of its output.

    Args:
        suites: folders of tests.
        root: the folder of the course; test ids are relative to it.
        options: options of pytest and of `gradsync.grading.suite.plugin`.
        plugin: an object with pytest's hooks.
    """
    said = io.StringIO()
    arguments = [*ISOLATED, f"--rootdir={root}", *options, *map(str, suites)]
    with (
        _no_collecting(),
        support_of(root),
        _forgetting(suites, root),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        code = pytest.main(arguments, plugins=[plugin])
    return code, said.getvalue()[-SHOWN:]


@contextlib.contextmanager
def _forgetting(suites: Sequence[Path], root: Path) -> Iterator[None]:
    """Remove the suites' modules from `sys.modules` afterwards.

    pytest names a module by its path in the course and does not import a name twice. So the next
    grade in this process could run tests of another course, or from before an edit.
    """
    prefixes = tuple(".".join([*suite.relative_to(root).parts, ""]) for suite in suites)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.startswith(prefixes)]:
            del sys.modules[name]


@contextlib.contextmanager
def _no_collecting() -> Iterator[None]:
    """Disable garbage collection, which would search all of torch; a suite leaves little garbage.

    After several suites it runs once, because Python does not collect frozen objects by itself.
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
