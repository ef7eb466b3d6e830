"""`gradsync check`: run the visible tests, once or after each save."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from gradsync.cli.activity import activity
from gradsync.cli.app import Seed, app, show
from gradsync.course.catalogue import Course, Exercise, find_course
from gradsync.course.codes import meanings
from gradsync.records import Report
from gradsync.reports import progress, summary, terminal
from gradsync.submission import read_submission
from gradsync.text import listed

POLL_SECONDS = 0.25  # also how long files must stay unchanged: editors write in several steps
Stamps = Mapping[Path, tuple[int, int, int] | None]  # of each file; None: it does not exist


class Interrupt:
    """Remembers Ctrl-C: Python drops a KeyboardInterrupt that a destructor raises."""

    def __init__(self) -> None:
        self.came = False
        signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        signal.default_int_handler(number, frame)


@app.command(name="check")
def check_command(
    exercise: Annotated[
        str | None, typer.Argument(help="The name of one exercise. Default: all.")
    ] = None,
    seed: Seed = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Check again after each save, until Ctrl-C.")
    ] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with status 1 if a shown test does not pass.")
    ] = False,
) -> None:
    """Run the visible tests on your files, and show your progress.

    [dim]gradsync check[/]             all exercises, and the next step
    [dim]gradsync check EXERCISE[/]    one exercise, with all details
    [dim]gradsync check --watch[/]     check again each time you save a file
    """
    course = find_course()
    chosen = course.find(exercise) if exercise is not None else None
    phases = (chosen.phase,) if chosen else course.phases_to_grade("visible")
    if not watch:
        passed = _check(course, phases, chosen, seed)
        raise typer.Exit(1 if exit_code and not passed else 0)
    try:
        _watch(course, phases, chosen, seed)
    except KeyboardInterrupt:
        print()


def _check(
    course: Course, phases: Sequence[str], chosen: Exercise | None, seed: int | None
) -> bool:
    """Run the visible tests and show the reports; return whether all shown tests passed."""
    from gradsync.grading.store import draw_seed  # imports packages that `--help` does not need

    done = passed = True  # done: all tests of the previous phase passed
    for phase in phases:
        report = _run(course, phase, chosen, draw_seed() if seed is None else seed)
        if not done and all(verdict.status == "unfinished" for verdict in report.verdicts):
            continue  # a phase that is not begun is shown only if the previous one is done
        done = all(verdict.status == "passed" for verdict in report.verdicts)
        passed = passed and done
        render = (
            partial(terminal.render, with_points=False)
            if chosen
            else partial(progress.render, lessons=_lessons(course, phase))
        )
        show(render, report)
        if chosen:
            _show_explain(course, report)
    return passed


def _lessons(course: Course, phase: str) -> dict[str, str | None]:
    """Return the notebook before each exercise, by the exercise's id."""
    return {exercise.id: exercise.notebook for exercise in course.exercises(phase)}


def _show_explain(course: Course, report: Report) -> None:
    """Name the command that explains the first mistake, if the course explains it."""
    explained = {meaning.code for meaning in meanings(course)}
    for problem in summary.problems(report):
        diagnosis = problem.first.diagnosis
        if diagnosis is not None and diagnosis.code in explained:
            print(f"To see wrong and right lines: gradsync explain {diagnosis.code}")
            break


def _run(course: Course, phase: str, chosen: Exercise | None, seed: int) -> Report:
    from gradsync.grading.grade import grade

    command = "gradsync check"
    if chosen is not None:
        command += f" {chosen.name if course.find(chosen.name) == chosen else chosen.id}"
    with activity() as now:
        subject = f"checking {phase}"
        now.show(subject, ", starting")
        report = grade(
            read_submission(course.root, course, "your work"),
            course,
            phases=[phase],
            seed=seed,
            audience="visible",
            exercises=[chosen.id] if chosen else (),
            on_test=lambda exercise, begun, count: now.show(
                subject, f", test {begun + 1} of {count}: {exercise.partition('/')[2]}"
            ),
        )
    return _explained(replace(report, command=command), course.root)


def _explained(report: Report, root: Path) -> Report:
    """Add the findings of `gradsync review` to tests that do not pass."""
    if all(verdict.status == "passed" for verdict in report.verdicts):
        return report
    from gradsync.review.explaining import explained

    return explained(report, root)


def _watch(
    course: Course, phases: Sequence[str], chosen: Exercise | None, seed: int | None
) -> None:
    """Check all phases, then each phase whenever one of its files changes."""
    due = phases
    interrupt = Interrupt()
    while True:
        before = _stamps(course, phases)
        _check(course, due, chosen, seed)
        if interrupt.came:
            raise KeyboardInterrupt
        print("\nWatching for changes. Press Ctrl-C to stop.", flush=True)
        changed = _await_change(course, phases, before)
        print(f"\n{time.strftime('%H:%M:%S')}  changed: {listed(changed)}\n", flush=True)
        due = [phase for phase in phases if any(name.startswith(phase) for name in changed)]


def _await_change(course: Course, phases: Sequence[str], before: Stamps) -> list[str]:
    """Wait until files have changed and are no longer being written; return their names."""
    last = before
    while (now := _stamps(course, phases)) == before or now != last:
        last = now
        time.sleep(POLL_SECONDS)
    changed = [path for path in now if now[path] != before[path]]
    return [path.relative_to(course.root).as_posix() for path in changed]


def _stamps(course: Course, phases: Sequence[str]) -> Stamps:
    paths = [course.root / phase / file for phase in phases for file in course.files(phase)]
    return {path: _stamp(path) for path in paths}


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return values that change with each save, even if an editor replaces the file."""
    try:
        found = path.stat()
    except OSError:  # it does not exist, or is being replaced
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
