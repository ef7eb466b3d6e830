"""Pure: find out which files are the user's, and name a line in a file."""

from __future__ import annotations

import functools
import os
import re
import sysconfig
from pathlib import Path

PACKAGE = Path(__file__).parents[2]  # gradsync itself
CARRIED = PACKAGE.with_name("gradsync_course")  # in a wheel: a course with its hidden tests
SUITES = str(CARRIED) + os.sep  # among libraries, but its tests are sent to the ranks as any others
# File and function of the frames in which a rank starts, or waits for, a collective.
_WATCH = PACKAGE / "ranks" / "inside" / "watch"
WATCH = {
    (str(_WATCH / "process_group.py"), "collective"),
    (str(_WATCH / "group_functions.py"), "meet"),
    (str(_WATCH / "state.py"), "wait"),
}
_FOLDERS = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_FOLDERS.add(str(PACKAGE))
LIBRARIES = tuple(folder + os.sep for folder in sorted(_FOLDERS))
# Code of Python, numpy or torch.compile; inductor names its files by a hash.
GENERATED = re.compile(r"<(frozen|__array|eval_with_key)|.*[/\\]c[a-z2-7]{51}\.py$")
PACKAGES = ("site-packages", "dist-packages")  # of any environment


@functools.lru_cache(maxsize=4096)  # called for every frame of every collective
def is_users(filename: str, roots: tuple[str, ...]) -> bool:
    """Return whether a file is the user's: under `roots`, or, without roots, not in a library."""
    if roots:
        return any(filename == root or filename.startswith(root + os.sep) for root in roots)
    if filename.startswith(SUITES):
        return True
    if filename.startswith(LIBRARIES) or GENERATED.match(filename):
        return False
    return not any(folder in filename for folder in PACKAGES)


def file_and_line(filename: str, line: int | None) -> str:
    """Return "template_trainer.py:91"."""
    return f"{os.path.basename(filename)}:{line or 0}"  # noqa: PTH119 - called often: Path is slow
