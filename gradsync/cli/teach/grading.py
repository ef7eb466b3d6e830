"""`gradsync grade` and `gradsync demo`: grade submissions with the hidden tests."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from gradsync.cli.shared import NO_SANDBOX, Out, Seed
from gradsync.cli.teach.class_run import execution_of, part_of, run_class
from gradsync.course import known_submissions
from gradsync.course.catalogue import find_course
from gradsync.grading.classes.entries import entries_at, entry_of, only_of
from gradsync.grading.classes.grade_class import Execution, grade_class
from gradsync.grading.imports.bulk import unpacked
from gradsync.grading.store import course_of
from gradsync.ranks.sandbox import sandbox

Submissions = Annotated[
    list[Path],
    typer.Argument(help="Submissions (folders, .zip, .tar.gz), or folders of submissions."),
]
Phase = Annotated[str | None, typer.Option(help="Grade this phase only, such as 1.")]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Submissions at a time. Default: as many as cores and memory allow."),
]
AddPhase = Annotated[
    bool,
    typer.Option("--add-phase", help="Keep the points of other phases in OUT, and add these."),
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


def repeated(*added: str, unsafe: bool, **given: object) -> str:
    """Return the command that grades again, without its paths, quoted for a shell.

    Args:
        added: further flags, or "".
        unsafe: whether to run without a sandbox.
        given: the values of options by name; None if an option was not given.
    """
    options = [(f"--{name}", str(value)) for name, value in given.items() if value is not None]
    flags = [*filter(None, added), "--fresh", *[NO_SANDBOX] * unsafe]
    words = [word for option in options for word in option]
    return shlex.join(["gradsync", "grade", *words, *flags])


def grade_command(
    submissions: Submissions,
    phase: Phase = None,
    add_phase: AddPhase = False,
    out: Out = Path("grades"),
    jobs: Jobs = None,
    roster: Roster = None,
    keep: KeepAttempt = None,
    only: Only = None,
    shard: Part = None,
    cluster: Cluster = None,
    seed: Seed = None,
    fresh: Fresh = False,
    unsafe: Unsafe = False,
) -> None:
    """Grade submissions with the hidden tests.

    Writes OUT/gradebook.csv, and report.html and report.json in OUT/NAME for each
    submission. A second run grades only new, changed and failed ones.

    [dim]gradsync grade ada.zip[/]                      one submission
    [dim]gradsync grade class/ --phase 1 --out week3[/]  a class
    [dim]gradsync grade class/ --phase 1 --only ada --out week3[/]  one submission of it
    [dim]gradsync grade class/ --phase 2 --add-phase --out week3[/]  points of another phase, too
    """
    course = course_of(out)
    phases = course.phases_to_grade("hidden", phase)
    add = "--add-phase" if add_phase else ""
    command = repeated(add, phase=phase, out=out, keep=keep, unsafe=unsafe)
    with unpacked(submissions, course) as given:
        every = entries_at(list(given), course, out, command, keep, given)
        members = only_of(every, only or [], out, roster)
        entries, seed = part_of(members, shard, course, phases, seed)
        if not unsafe and cluster is None:
            sandbox.check(course.root)
        graded = partial(
            grade_class,
            entries,
            course,
            phases,
            out,
            roster=roster,
            seed=seed,
            fresh=fresh,
            sandboxed=not unsafe,
            members=every,
            add_phase=add_phase,
        )
        execution = execution_of(len(entries), jobs, cluster)
        run_class(graded, len(entries), out, execution, fresh=fresh)


def demo_command(
    out: Out = Path("grades/demo"),
    seed: Seed = None,
) -> None:
    """Grade three submissions of one phase: the solution, the template, and one with a mistake."""
    course = find_course(carried=True)
    course.phases_to_grade("hidden")
    shown = known_submissions.shown_mistake(course)
    right, empty = known_submissions.reference(course), known_submissions.untouched(course)
    wrong = shown.submission(course)
    entries = [entry_of(given, "gradsync demo") for given in (right, empty, wrong)]
    graded = partial(
        grade_class, entries, course, [shown.phase], out, seed=seed, fresh=True, sandboxed=False
    )
    run_class(graded, len(entries), out, Execution(), fresh=True, whole=True)
    print(f"Open {out / wrong.name / 'report.html'} to see the mistake rank by rank.")
