"""`gradsync trace`: draw when each rank of a trainer or a pipeline computes and communicates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradsync.course.catalogue import find_course
from gradsync.grading.suite.verdicts import MissingFile
from gradsync.grading.tracing import trace
from gradsync.submission import SubmissionError, read_submission

UNFINISHED = "No trace was written. `gradsync check` shows what to write next."


def trace_command(
    submission: Annotated[
        Path | None, typer.Argument(help="A submission. Default: your own files.")
    ] = None,
    phase: Annotated[
        str | None, typer.Option(help="The phase of the trainer, such as 2. Default: the first.")
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, max=8, help="The number of ranks.")] = 2,
    pipeline: Annotated[
        bool, typer.Option("--pipeline", help="Draw a step of the phase's pipeline instead.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The path of the trace, without an extension.")] = Path(
        "trace"
    ),
) -> None:
    """Draw when each rank of a trainer computes and when it communicates.

    Runs a few steps of training. Writes OUT.svg, and OUT.json for https://ui.perfetto.dev.

    [dim]gradsync trace --phase 2[/]              your own trainer of phase 2, on 2 ranks
    [dim]gradsync trace ada.zip --ranks 4[/]      the trainer of phase 1 in ada.zip, on 4 ranks
    [dim]gradsync trace --phase 3 --pipeline[/]   the schedule of your pipeline, and its bubble
    """
    course = find_course()
    chosen = course.phases[0] if phase is None else course.phase(phase)
    if submission is not None and not submission.exists():
        raise SubmissionError(f"{submission} does not exist. Name a folder, .zip or .tar.gz.")
    given = read_submission((submission or course.root).resolve(), course, phases=[chosen])
    try:
        traced = trace(given, course, chosen, ranks, pipeline=pipeline)
    except MissingFile as missing:
        raise SubmissionError(f"{submission or course.root}: {missing}") from None
    failure = traced.seen.failure
    if failure is not None and failure.status == "unfinished":
        raise SubmissionError(f"{failure.diagnosis.explanation} {UNFINISHED}")
    for path in traced.write(out):
        print(path)
    print(" ".join(traced.sentences()))
    if failure is not None:
        print(f"The run failed. {failure.diagnosis.explanation}")
