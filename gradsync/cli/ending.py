"""How a command ends: every way has its exit status."""

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
UNSAFE = f"With {NO_SANDBOX} submissions run with your rights, as your own code would."


def main() -> None:
    """Run the command line; every way in which it can end has its exit status."""
    atexit.register(gc.freeze)  # else Python goes through all of torch for garbage, for a second
    try:
        app()
    except UnusableInput as problem:
        _fail(UNUSABLE_ARGUMENTS, str(problem))
    except SandboxError as problem:
        _fail(GRADER_FAILED, f"no sandbox for other people's code: {problem}. {UNSAFE}")
    except (GraderError, OSError) as problem:
        _fail(GRADER_FAILED, f"the grader itself failed: {problem}")
    except Exception:  # noqa: BLE001 - whatever is left is ours, and must not look like a grade
        traceback.print_exc()
        _fail(GRADER_FAILED, "the grader itself failed, see above; no submission is to blame")


def _fail(status: int, text: str) -> NoReturn:
    print(f"gradsync: {text}", file=sys.stderr)
    raise SystemExit(status)
