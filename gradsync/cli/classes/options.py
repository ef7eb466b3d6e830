"""The options of `gradsync grade`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from gradsync.cli.app import NO_SANDBOX

Submissions = Annotated[
    list[Path],
    typer.Argument(help="Submissions (folders, .zip, .tar.gz), or folders of submissions."),
]
Phase = Annotated[str | None, typer.Option(help="Grade this phase only, such as 1.")]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Submissions at a time. Default: as many as cores and memory allow."),
]
Roster = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="The class: a CSV with the columns id,name,email."),
]
KeepAttempt = Annotated[
    Literal["best", "last"] | None,
    typer.Option(help="Which attempt counts, if a learner has several. Default: last."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Grade this learner of a class only: a name as in gradebook.csv, or an id or an "
        "address. May be repeated.",
    ),
]
Part = Annotated[
    str | None,
    typer.Option(
        metavar="K/N",
        help="Grade the K-th of N parts of the class only; `gradsync merge` merges the parts.",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Grade on the workers of this Dask scheduler."),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Grade all submissions again, unchanged ones too.")
]
Unsafe = Annotated[
    bool,
    typer.Option(NO_SANDBOX, help="Run submissions without a sandbox, with your permissions."),
]


def repeated(*, unsafe: bool, **given: object) -> str:
    """Return the command that grades again, without its paths, quoted for a shell.

    Args:
        unsafe: whether to run without a sandbox.
        given: the values of options by name; None if an option was not given.
    """
    options = [(f"--{name}", str(value)) for name, value in given.items() if value is not None]
    flags = ["--fresh", *[NO_SANDBOX] * unsafe]
    words = [word for option in options for word in option]
    return shlex.join(["gradsync", "grade", *words, *flags])
