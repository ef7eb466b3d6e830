"""Overrides and lateness on a learner's page."""

from report_samples import SCRIPT, report, verdict

from gradsync.class_records import ExerciseResult, Override, Result
from gradsync.reports import corrections, html

PAGE = html.render(report(verdict()))


def result(reason="appeal", **changes):
    override = Override("ada", "phase1/double", 2.0, reason, "Kim")
    exercise = ExerciseResult("phase1/double", 2.0, 4.0, override)
    return Result("ada", "graded", 2.0, 4.0, exercises=(exercise,), **changes)


def test_an_override_is_shown_with_its_reason_and_the_final_score():
    page = corrections.insert(PAGE, result())

    assert "Final score: 2 of 4 points" in page
    assert "by Kim. appeal." in page


def test_lateness_is_shown():
    late = Result("ada", "graded", 2.0, 4.0, days_late=1.5, points_lost=0.8)

    shown = " ".join(corrections.insert(PAGE, late).split())
    assert "Days late, after extensions and grace days: 1.5." in shown
    assert "0.8 points are subtracted." in shown


def test_later_corrections_replace_earlier_ones():
    once = corrections.insert(PAGE, result("first"))

    assert corrections.insert(once, result("second")) == corrections.insert(PAGE, result("second"))


def test_without_corrections_the_page_is_as_it_was():
    corrected = corrections.insert(PAGE, result())

    assert corrections.insert(corrected, Result("ada", "graded", 2.0, 4.0)) == PAGE


def test_a_reason_is_text_and_not_html():
    page = corrections.insert(PAGE, result(f"{SCRIPT}{corrections.END}"))

    assert SCRIPT not in page
    assert page.count(corrections.END) == 1


def test_a_learner_cannot_move_the_place_of_corrections():
    page = html.render(report(verdict(), submission=corrections.BEGIN + corrections.END))

    assert page.count(corrections.BEGIN) == 1


def test_a_page_without_a_place_for_corrections_is_unchanged():
    assert corrections.insert("<p>", result()) == "<p>"
