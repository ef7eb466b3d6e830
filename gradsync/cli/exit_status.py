"""Turn each outcome of a command into an exit status and a message."""

from __future__ import annotations

import atexit
import gc
import sys
import traceback
from typing import NoReturn

from gradsync.cli.app import NO_SANDBOX, app
from gradsync.errors import GraderError, SandboxError, UnusableInput

UNUSABLE_ARGUMENTS = 2
GRADER_FAILED = 3
UNSAFE = f"With {NO_SANDBOX}, submissions run without a sandbox, with your permissions."


def main() -> None:
    """Run the command line, and exit with the status of its outcome."""
    # Otherwise Python searches all of torch for garbage, which takes a second.
    atexit.register(gc.freeze)
    try:
        app()
    except UnusableInput as problem:
        _fail(UNUSABLE_ARGUMENTS, str(problem))
    except SandboxError as problem:
        _fail(GRADER_FAILED, f"There is no sandbox for submissions. {problem} {UNSAFE}")
    except (GraderError, OSError) as problem:
        _fail(GRADER_FAILED, f"The grader itself failed: {problem}")
    except Exception:  # noqa: BLE001 - an error of ours must not look like a grade
        traceback.print_exc()
        _fail(
            GRADER_FAILED,
            "The grader itself failed, with the error above. No submission caused it.",
        )


def _fail(status: int, text: str) -> NoReturn:
    print(f"gradsync: {text}", file=sys.stderr)
    raise SystemExit(status)
