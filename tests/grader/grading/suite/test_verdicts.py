"""Verdicts from the outcomes of tests."""

from gradsync.grading.suite.verdicts import MAX_DRAWN, MAX_TEXT, verdict_of
from gradsync.records import Collective, Diagnosis, Event, Observation
from gradsync.testing.assertions import Mistake


def verdict(error, *seen):
    known = {"id": "phase1/trainer::test_it", "exercise": "phase1/train", "file": "f.py"}
    return verdict_of(error, **known, max_points=1.0, title="It.", seconds=0.1, seen=seen)


def run_of(events):
    return Observation(1, (None,), tuple(events), ("",), 0.1)


def test_a_long_text_is_cut_with_a_note():
    text = "x" * (MAX_TEXT + 1_234_567)
    seen = verdict(Mistake(text, Diagnosis("exception", (0,), text, where=text)))

    for kept in (seen.message, seen.diagnosis.explanation, seen.diagnosis.where):
        assert kept.startswith("x" * MAX_TEXT + "...")
        assert kept.endswith("(1,234,567 more characters)")


def test_other_texts_are_not_changed():
    text = "x" * MAX_TEXT
    diagnosis = Diagnosis("exception", (0,), text, where="f.py:1", guide="Training")
    seen = verdict(Mistake(text, diagnosis))

    assert (seen.message, seen.diagnosis) == (text, diagnosis)


def test_only_the_last_events_of_a_long_run_are_kept():
    call = Collective("barrier", "0", (0,))
    run = run_of(Event(0, "enter", n, 0.1, 1, 0, call) for n in range(MAX_DRAWN + 50))

    assert verdict(Mistake("no"), run).events == run.events[50:]
    assert verdict(Mistake("no"), run_of(run.events[:9])).events == run.events[:9]


def test_the_run_of_a_passed_test_is_not_kept():
    run = run_of([Event(0, "enter", 0, 0.1, 1, 0, Collective("barrier", "0", (0,)))])

    assert verdict(None, run).events == ()
