"""The progress of grading a class."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from report_samples import report, verdict
from rich.console import Console
from rich.live import Live

from gradsync.cli.teach.class_run import Display, Lines, line
from gradsync.grading.classes.grade_class import Outcome


def outcome(name, points=3.0, **changes):
    known = report(verdict(points=points, max_points=4.0), submission=name)
    return Outcome(replace(known, **changes), Path(f"out/{name}.html"), is_new=True)


@pytest.fixture
def shown():
    """Return what a display of four submissions shows after some steps."""

    def show(*steps):
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=True, width=70, color_system=None)
        with Live(console=console, auto_refresh=False) as live:
            display = Display(4, live)
            for step in steps:
                step(display)
            screen.truncate(0)
            live.refresh()
            return screen.getvalue()

    return show


def begin(name):
    return lambda display: display.begin(name)


def end(name):
    return lambda display: display.end(outcome(name))


def test_the_display_shows_finished_and_running_submissions_and_the_time_left(shown):
    seen = shown(begin("ada"), begin("bob"), end("ada"))

    assert "1 of 4" in seen
    assert "left" in seen
    assert "grading bob" in seen
    assert "ada: 3 of 4 points" in seen


def test_the_display_has_the_latest_scores_only(shown):
    names = [f"learner-{number}" for number in range(9)]
    seen = shown(*[step(name) for name in names for step in (begin, end)])

    assert [name for name in names if f"{name}:" in seen] == names[-5:]


def test_a_name_cannot_control_the_terminal(shown):
    seen = shown(begin("\x1b[2Jada[bold]"))

    assert "\x1b[2J" not in seen
    assert "[bold]" in seen


def test_without_a_terminal_each_submission_has_one_line(capsys):
    lines = Lines()
    for name in ("ada", "bob"):
        lines.begin(name)
        lines.end(outcome(name))

    assert capsys.readouterr().out.splitlines() == [
        "ada: 3 of 4 points, out/ada.html",
        "bob: 3 of 4 points, out/bob.html",
    ]


def test_a_line_says_what_is_unusual():
    missing = (verdict(status="missing", max_points=4.0),)
    unreadable = outcome("ada", verdicts=missing, notes=("unreadable: not an archive",))
    failed = outcome("bob", problem="pytest broke")

    assert line(unreadable) == "ada: 0 of 4 points, could not be read, out/ada.html"
    assert line(failed) == "bob: could not be graded"
