"""`gradsync check`: run the visible tests, once or after each save."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from gradsync.cli.activity import activity
from gradsync.cli.shared import Seed, say, show
from gradsync.course.catalogue import Audience, Course, Exercise, find_course
from gradsync.course.codes import meanings
from gradsync.grading.grade import grade
from gradsync.grading.store import draw_seed
from gradsync.records import Report
from gradsync.reports import progress, summary, terminal
from gradsync.submission import read_submission
from gradsync.text import listed

POLL_SECONDS = 0.25  # also how long files must stay unchanged: editors write in several steps
Asked = Mapping[str, Sequence[Exercise]]  # by phase: the exercises to check; none means all
Stamps = Mapping[Path, tuple[int, int, int] | None]  # of each file; None: it does not exist


class Interrupt:
    """Remembers Ctrl-C: Python drops a KeyboardInterrupt that a destructor raises."""

    def __init__(self) -> None:
        self.came = False
        signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        signal.default_int_handler(number, frame)


def check_command(
    exercise: Annotated[
        str | None,
        typer.Argument(help="The name of one exercise, or a phase such as phase2. Default: all."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Run the hidden tests too, if this copy has them.")
    ] = False,
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
    [dim]gradsync check --all[/]       the hidden tests too: a tick is the grade's
    """
    course = find_course()
    asked = _asked(course, exercise, "hidden" if everything else "visible")
    audiences: Sequence[Audience] = ("visible", "hidden") if everything else ("visible",)
    for phase in asked:
        for audience in audiences:
            course.suite(audience, phase)  # raises an error before any test runs
    check = partial(_check, course, audiences, seed=seed)
    if not watch:
        passed = check(asked)
        raise typer.Exit(1 if exit_code and not passed else 0)
    try:
        _watch(course, asked, check)
    except KeyboardInterrupt:
        print()


def _asked(course: Course, name: str | None, audience: Audience) -> Asked:
    """Return the phases to check, each with the exercises to check, none for all."""
    if name is None or name in course.phases:
        return dict.fromkeys(course.phases_to_grade(audience, name), ())
    found = course.named(name)
    if len(found) > 1:
        say(
            f"{name} is an exercise of {listed(one.phase for one in found)}: checking "
            f"{'both' if len(found) == 2 else 'all'}. `gradsync check {found[-1].id}` checks one."
        )
    return {one.phase: (one,) for one in found}


def _check(
    course: Course, audiences: Sequence[Audience], asked: Asked, *, seed: int | None
) -> bool:
    """Run the tests and show the reports; return whether all shown tests passed."""
    done = passed = True  # done: all tests of the previous phase passed
    whole = "hidden" in audiences
    for phase, chosen in asked.items():
        if not (done or chosen or is_begun(course, phase)):
            continue  # tested only if the previous phase is done
        report = run_tests(course, phase, chosen, audiences, draw_seed() if seed is None else seed)
        done = all(verdict.status == "passed" for verdict in report.verdicts)
        passed = passed and done
        lessons = {exercise.id: exercise.notebook for exercise in course.exercises(phase)}
        render = (
            partial(terminal.render, with_points=False)
            if chosen
            else partial(progress.render, lessons=lessons)
        )
        show(partial(render, whole=whole), report)
        if chosen:
            _show_explain(course, report)
            if done:
                print(f"For your next step: gradsync check {phase}")
    return passed


def is_begun(course: Course, phase: str) -> bool:
    """Return whether a file of the phase is missing, or lacks the stub of an exercise."""
    paths = [course.root / phase / file for file in course.files(phase)]
    if not all(path.is_file() for path in paths):
        return True
    text = "".join(path.read_text(encoding="utf-8", errors="replace") for path in paths)
    stubs = (f'NotImplementedError("{exercise.id}")' for exercise in course.exercises(phase))
    return not all(stub in text for stub in stubs)


def _show_explain(course: Course, report: Report) -> None:
    """Name the command that explains the first mistake, if the course explains it."""
    explained = {meaning.code for meaning in meanings(course)}
    for problem in summary.problems(report):
        diagnosis = problem.first.diagnosis
        if diagnosis is not None and diagnosis.code in explained:
            print(f"To see wrong and right lines: gradsync explain {diagnosis.code}")
            break


def run_tests(
    course: Course,
    phase: str,
    chosen: Sequence[Exercise],
    audiences: Sequence[Audience],
    seed: int,
) -> Report:
    """Return the report of the learner's own files, with the tests of these audiences together.

    Args:
        course: the course; the learner's files are in its folder.
        phase: the phase to test.
        chosen: its exercises to test; none for all.
        audiences: whose tests to run.
        seed: the seed of the tests' random inputs.
    """
    names = [one.name if len(course.named(one.name)) == 1 else one.id for one in chosen]
    words = ["gradsync check", *names, *["--all"] * ("hidden" in audiences)]
    with activity() as now:
        subject = f"checking {phase}"
        now.show(subject, ", starting")
        reports = [
            grade(
                read_submission(course.root, course, "your work"),
                course,
                phases=[phase],
                seed=seed,
                audience=audience,
                exercises=[one.id for one in chosen],
                on_test=lambda exercise, begun, count: now.show(
                    subject, f", test {begun + 1} of {count}: {exercise.partition('/')[2]}"
                ),
            )
            for audience in audiences
        ]
    places = {one.id: place for place, one in enumerate(course.exercises(phase))}
    verdicts = [verdict for report in reports for verdict in report.verdicts]
    together = replace(
        reports[0],
        verdicts=tuple(sorted(verdicts, key=lambda verdict: places[verdict.exercise])),
        seconds=round(sum(report.seconds for report in reports), 2),
        command=" ".join(words),
    )
    if all(verdict.status == "passed" for verdict in verdicts):
        return together
    from gradsync.review.explaining import explained  # its rules take long to import

    return explained(together, course.root)


def _watch(course: Course, asked: Asked, check: Callable[[Asked], bool]) -> None:
    """Check all phases, then each phase whenever one of its files changes."""
    due, phases = asked, list(asked)
    interrupt = Interrupt()
    while True:
        before = _stamps(course, phases)
        check(due)
        if interrupt.came:
            raise KeyboardInterrupt
        print("\nWatching for changes. Press Ctrl-C to stop.", flush=True)
        changed = _await_change(course, phases, before)
        print(f"\n{time.strftime('%H:%M:%S')}  changed: {listed(changed)}\n", flush=True)
        due = {
            phase: chosen
            for phase, chosen in asked.items()
            if any(name.startswith(f"{phase}/") for name in changed)
        }


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
