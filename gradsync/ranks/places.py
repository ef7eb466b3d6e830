"""Pure: which files are the user's own, and how a line of one is named."""

from __future__ import annotations

import functools
import os
import sysconfig
from pathlib import Path

_FOLDERS = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_FOLDERS.add(str(Path(__file__).parent.parent))  # gradsync itself
LIBRARIES = tuple(folder + os.sep for folder in sorted(_FOLDERS))
PACKAGES = ("site-packages", "dist-packages")  # of whichever environment


@functools.lru_cache(maxsize=4096)  # asked for every frame of every collective
def is_users(filename: str, roots: tuple[str, ...]) -> bool:
    """Tell whether a file is the user's own: under `roots`, or, without roots, in no library."""
    if roots:
        return any(filename == root or filename.startswith(root + os.sep) for root in roots)
    if filename.startswith(("<frozen", "<__array", *LIBRARIES)):
        return False
    return not any(folder in filename for folder in PACKAGES)


def place(filename: str, line: int | None) -> str:
    """Return "template_trainer.py:91"."""
    return f"{os.path.basename(filename)}:{line or 0}"  # noqa: PTH119 - called often: Path is slow
