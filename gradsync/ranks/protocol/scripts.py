"""Run a program on a rank, as its own command would."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


def run_script(script: str, args: Sequence[str]) -> None:
    """Run a file as the main program; a successful exit is a normal return.

    Raises:
        SystemExit: the program exits with a status other than 0.
    """
    main = ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"] = main
    sys.argv = [script, *args]
    sys.path.insert(0, str(Path(script).parent))
    try:
        exec(compile(Path(script).read_bytes(), script, "exec"), vars(main))
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
