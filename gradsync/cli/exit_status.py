"""Turn each outcome of a command into an exit status and a message."""

from __future__ import annotations

import sys
import traceback

from gradsync.cli.app import TEACHING, app
from gradsync.cli.shared import NO_SANDBOX
from gradsync.course.catalogue import CourseError, find_course
from gradsync.errors import GraderError, SandboxError, UnusableInput

UNUSABLE_ARGUMENTS = 2
GRADER_FAILED = 3
UNSAFE = f"With {NO_SANDBOX}, submissions run without a sandbox, with your permissions."


def run() -> int:
    """Run the command line; return the exit status of its outcome."""
    _hide_what_does_not_apply()
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except UnusableInput as problem:
        return _failed(UNUSABLE_ARGUMENTS, str(problem))
    except SandboxError as problem:
        return _failed(GRADER_FAILED, f"There is no sandbox for submissions. {problem} {UNSAFE}")
    except (GraderError, OSError) as problem:
        return _failed(GRADER_FAILED, f"The grader itself failed: {problem}")
    except ModuleNotFoundError:
        raise  # `main` reports which package is missing
    except Exception:  # noqa: BLE001 - an error of the grader must not look like a grade
        traceback.print_exc()
        return _failed(
            GRADER_FAILED,
            "The grader itself failed, with the error above. No submission caused it.",
        )
    return 0


def _hide_what_does_not_apply() -> None:
    """In a learner's copy, show only a learner's commands in `gradsync --help`.

    The others still run: some of them need no course at all.
    """
    try:
        course = find_course()
    except CourseError:
        return
    hidden = {TEACHING} if course.is_release else set()
    for command in app.registered_commands:
        command.hidden = command.rich_help_panel in hidden
        if command.name == "solution":
            command.hidden = not (course.root / "solutions").is_dir()


def _failed(status: int, text: str) -> int:
    print(f"gradsync: {text}", file=sys.stderr)
    return status
