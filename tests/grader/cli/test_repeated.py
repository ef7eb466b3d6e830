"""Output of `gradsync grade`: the command that repeats a run, and the missing people."""

from pathlib import Path

from gradsync.cli.teach.class_run import Tally
from gradsync.cli.teach.grading import repeated
from gradsync.grading.classes.grade_class import Outcome
from gradsync.grading.classes.regrading import Change
from gradsync.records import Report


def test_the_command_has_the_options_that_were_given_quoted_for_a_shell():
    given = {"phase": "1", "out": Path("week 3"), "keep": None}

    assert repeated(**given, unsafe=False) == ("gradsync grade --phase 1 --out 'week 3' --fresh")
    assert repeated(out="x", unsafe=True).endswith(" --out x --fresh --unsafe-no-sandbox")


def test_scores_that_the_tests_did_not_give_are_counted(capsys):
    tally = Tally()
    tally.corrected = 2
    tally.show(Path("out"), page=False)

    assert "2 scores changed by overrides or lateness" in capsys.readouterr().out


def test_people_who_handed_in_nothing_are_counted_and_named(capsys):
    tally = Tally()
    tally.missing = ["Müller, Anna", "Bob"]
    tally.show(Path("out"), page=False)

    assert (
        '2 people on the roster handed in nothing: Bob, "Müller, Anna"' in capsys.readouterr().out
    )


def test_a_regrade_that_changes_no_score_says_so(capsys):
    report = Report("ada", seed=0, seconds=0.0, verdicts=())
    tally = Tally()
    tally.count(Outcome(report, Path("report.html"), is_new=True, change=Change(report, report)))
    tally.show(Path("out"), page=False)

    assert "1 submission graded again: no score changed" in capsys.readouterr().out
