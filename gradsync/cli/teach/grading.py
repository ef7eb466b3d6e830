"""`gradsync grade` and `gradsync demo`: grade submissions with the hidden tests."""

from __future__ import annotations

from pathlib import Path

from gradsync.cli.app import Out, Seed, app
from gradsync.cli.classes import options
from gradsync.cli.classes.run import choose_executor, part_of, run_class
from gradsync.course import known_submissions
from gradsync.course.catalogue import find_course


@app.command(name="grade")
def grade_command(
    submissions: options.Submissions,
    phase: options.Phase = None,
    out: Out = Path("grades"),
    jobs: options.Jobs = None,
    roster: options.Roster = None,
    keep: options.KeepAttempt = None,
    only: options.Only = None,
    shard: options.Part = None,
    cluster: options.Cluster = None,
    seed: Seed = None,
    fresh: options.Fresh = False,
    unsafe: options.Unsafe = False,
) -> None:
    """Grade submissions with the hidden tests.

    Writes OUT/gradebook.csv, and report.html and report.json in OUT/NAME for each
    submission. A second run grades only new, changed and failed ones.

    [dim]gradsync grade ada.zip[/]                      one submission
    [dim]gradsync grade class/ --phase 1 --out week3[/]  a class
    [dim]gradsync grade class/ --only ada --out week3[/] one submission of it
    """
    from gradsync.grading.classes.entries import entries_at, only_of  # imports pytest
    from gradsync.grading.imports.bulk import unpacked
    from gradsync.ranks.sandbox import sandbox

    course = find_course()
    phases = course.phases_to_grade("hidden", phase)
    command = options.repeated(phase=phase, out=out, roster=roster, keep=keep, unsafe=unsafe)
    with unpacked(submissions, course) as given:
        every = entries_at(list(given), course, out, command, keep, given)
        members = only_of(every, only or [], out, roster)
        entries, seed = part_of(members, shard, course, phases, seed)
        if not unsafe and cluster is None:
            sandbox.check(course.root)
        perform, parallel = choose_executor(len(entries), jobs, cluster)
        run_class(
            entries,
            course,
            phases,
            out,
            roster=roster,
            seed=seed,
            fresh=fresh,
            sandboxed=not unsafe,
            perform=perform,
            parallel=parallel,
            members=members,
        )


@app.command()
def demo(
    out: Out = Path("grades/demo"),
    seed: Seed = None,
) -> None:
    """Grade three submissions of one phase: the solution, the template, and one with a mistake."""
    from gradsync.grading.classes.entries import entry_of
    from gradsync.grading.tasks import here

    course = find_course()
    course.phases_to_grade("hidden")
    shown = known_submissions.shown_mistake(course)
    right, empty = known_submissions.reference(course), known_submissions.untouched(course)
    wrong = shown.submission(course)
    entries = [entry_of(given, "gradsync demo") for given in (right, empty, wrong)]
    run_class(
        entries,
        course,
        [shown.phase],
        out,
        seed=seed,
        fresh=True,
        sandboxed=False,
        perform=here,
        whole=True,
    )
    print(f"Open {out / wrong.name / 'report.html'} to see the mistake rank by rank.")
