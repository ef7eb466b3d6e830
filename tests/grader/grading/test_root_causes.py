"""Failures that an earlier exercise may have caused name it, and keep their message."""

from dataclasses import replace

from gradsync.grading.root_causes import point_at_causes, point_at_diagnosed, point_at_roots
from gradsync.records import Diagnosis, Verdict

NEEDS = {"p/step": ["p/average"], "p/epoch": ["p/step"], "p/train": ["p/epoch", "p/broadcast"]}


def verdict(exercise, status="failed"):
    points = float(status == "passed")
    return Verdict(f"{exercise}::test", f"p/{exercise}", "f.py", points, 1.0, status, "it differs")


def messages(*verdicts):
    return {v.exercise: v.message for v in point_at_roots(verdicts, NEEDS)}


def test_a_symptom_names_the_exercise_to_fix_first():
    said = messages(verdict("average"), verdict("step"))

    assert said["p/average"] == "it differs"
    assert said["p/step"].startswith("average is not right yet")
    assert said["p/step"].endswith("it differs")


def test_a_long_chain_names_only_its_root():
    said = messages(verdict("average"), verdict("step"), verdict("epoch"), verdict("train"))

    assert said["p/train"].startswith("average is not right yet")
    assert "step" not in said["p/train"]


def test_a_link_that_passes_does_not_break_the_chain():
    said = messages(verdict("average"), verdict("step", "passed"), verdict("epoch"))

    assert said["p/epoch"].startswith("average is not right yet")


def test_two_roots_are_both_named():
    said = messages(verdict("average"), verdict("broadcast"), verdict("train"))

    assert said["p/train"].startswith("average and broadcast are not right yet")


def test_a_symptom_has_its_causes():
    wrong = point_at_roots([verdict("average"), verdict("step")], NEEDS)

    assert [one.causes for one in wrong] == [(), ("p/average",)]


def test_messages_of_independent_mistakes_are_not_changed():
    assert set(messages(verdict("average"), verdict("broadcast")).values()) == {"it differs"}


def test_an_unfinished_exercise_is_a_root_and_not_a_symptom():
    said = messages(verdict("average", "unfinished"), verdict("step"), verdict("epoch", "missing"))

    assert said["p/step"].startswith("average is not written yet, which may be the cause. Write it")
    assert said["p/average"] == said["p/epoch"] == "it differs"


def test_a_missing_name_is_a_root_and_a_missing_file_is_not():
    ran = replace(verdict("average", "missing"), world_size=2)

    assert messages(ran, verdict("step"))["p/step"].startswith("average is not right yet")
    assert messages(verdict("average", "missing"), verdict("step"))["p/step"] == "it differs"


def test_a_file_that_can_not_be_imported_is_not_a_symptom():
    broken = Diagnosis("exception", (0,), "it can't be imported", whole_file=True)
    both = [replace(verdict(name), diagnosis=broken) for name in ("average", "step")]

    assert set(messages(*both).values()) == {"it differs"}


def test_points_status_and_order_are_untouched():
    before = (verdict("step"), verdict("average"), verdict("train", "passed"))

    after = point_at_roots(before, NEEDS)

    assert [(v.id, v.status, v.points) for v in after] == [
        (v.id, v.status, v.points) for v in before
    ]


def test_a_test_without_a_diagnosis_names_an_earlier_one_that_has_one():
    known = Diagnosis("sum-not-mean", (0,), "it is the sum")
    first = replace(verdict("average"), title="Two ranks agree.", diagnosis=known)
    others = (verdict("average"), verdict("average", "passed"), verdict("step"))

    after = point_at_diagnosed((first, *others))

    assert after[0] == first
    assert after[1].message.startswith('The mistake found by another test, "Two ranks agree", may')
    assert after[1].message.endswith("it differs")
    assert after[2:] == others[1:]


def test_a_message_names_one_thing_to_fix_first():
    known = Diagnosis("sum-not-mean", (0,), "it is the sum")
    first = replace(verdict("step"), title="Two ranks agree.", diagnosis=known)

    said = [v.message for v in point_at_causes((first, verdict("step"), verdict("average")), NEEDS)]

    assert said[1] == said[0]
    assert said[1].count("first.") == 1
