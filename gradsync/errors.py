"""The errors that end a command, each with an exit status."""

from __future__ import annotations

POSIX_ONLY = {"fcntl", "grp", "pwd", "resource", "termios"}  # Windows lacks these modules
NO_POSIX = (
    "Ranks need Linux or macOS. On Windows, run `wsl --install`, and use gradsync in this Linux."
)
BROKEN = "A test of the course is broken"  # the beginning of such an error's text


class UnusableInput(Exception):  # noqa: N818 - the input is wrong, not this program
    """The input of a command can't be used; the text says why and what to do. Status 2."""


class GraderError(Exception):
    """The grader itself failed; no submission caused it. Status 3."""


class SandboxError(Exception):
    """This machine can't create a sandbox; the text says why and what to do. Status 3."""
