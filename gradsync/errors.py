"""The errors that end a command, by its exit status."""

from __future__ import annotations


class UnusableInput(Exception):  # noqa: N818 - what was given is at fault, not this program
    """The input of a command can't be used; the text says why and what to do. Status 2."""


class GraderError(Exception):
    """The grader itself failed, through no fault of a submission. Status 3."""


class SandboxError(Exception):
    """This machine can't make a sandbox; the text says why, and what to do. Status 3."""
