"""Every known mistake gets its code, and every correct answer gets full marks.

A mistake is graded by the tests of its own exercise, and a correct answer by the tests of the
exercises that it writes anew. `make truth` grades all of them by all tests.
"""

import ast
from collections import Counter
from dataclasses import replace

import pytest
from known_answers import COURSE, PHASES, RIGHT, WRONG, written_anew
from quick_part import drawn

from gradsync.course.catalogue import CourseError
from gradsync.course.known_submissions import Right, reference, right_submissions, wrong_submissions
from gradsync.grading.grade import grade

# These are slow: they wait for lost ranks, or write many exercises anew.
MANY = 4
LATE = {
    "phase2/waits-for-dead-ranks-in-the-store",
    "phase2/training_saves_each_epoch",
    *(key for key, right in RIGHT.items() if len(written_anew(right)) > MANY),
}
LEAST = {
    "phase1": (80, 20),
    "phase2": (60, 15),
    "phase3": (265, 45),
}  # number of mistakes, number of correct answers


def verdicts_of(known, exercise, *pytest_options):
    submission, phases = known.submission(COURSE), [known.phase]
    options = {"exercises": [exercise], "pytest_options": pytest_options, "parallel": 1}
    return grade(submission, COURSE, phases=phases, seed=3, **options).verdicts


@pytest.mark.parametrize("key", drawn({key: [one.exercise] for key, one in WRONG.items()}, LATE))
def test_a_known_mistake_costs_points_and_is_named(key):
    verdicts = verdicts_of(WRONG[key], WRONG[key].exercise, "--exitfirst")

    failed = [verdict for verdict in verdicts if verdict.status != "passed"]
    assert failed, "it got full marks"
    assert failed[0].points == 0 < failed[0].max_points
    assert failed[0].diagnosis is not None, failed[0].message
    assert failed[0].diagnosis.code == WRONG[key].code, failed[0].message


@pytest.mark.parametrize("key", drawn({key: written_anew(one) for key, one in RIGHT.items()}, LATE))
def test_a_correct_answer_gets_full_marks(key):
    verdicts = [
        verdict
        for exercise in written_anew(RIGHT[key])
        for verdict in verdicts_of(RIGHT[key], exercise)
    ]

    assert {v.id: v.message for v in verdicts if v.status != "passed"} == {}
    assert sum(v.points for v in verdicts) == sum(v.max_points for v in verdicts) > 0


@pytest.mark.parametrize("phase", PHASES)
def test_the_bank_is_large_and_every_exercise_has_its_share(phase):
    wrong = wrong_submissions(COURSE, phase)
    least_wrong, least_right = LEAST[phase]

    assert len(wrong) >= least_wrong
    assert len(right_submissions(COURSE, phase)) >= least_right
    assert {one.exercise for one in wrong} == {exercise.id for exercise in COURSE.exercises(phase)}


def test_the_answers_that_are_left_for_later_exist():
    assert set(WRONG) | set(RIGHT) >= LATE


def test_no_two_answers_in_the_bank_have_the_same_name():
    wrong = [one.name for phase in PHASES for one in wrong_submissions(COURSE, phase)]
    right = [one.name for phase in PHASES for one in right_submissions(COURSE, phase)]

    assert [name for name, count in Counter(wrong + right).items() if count > 1] == []


def test_two_mistakes_in_one_submission_are_both_found():
    first, second = WRONG["phase1/forgets-the-buffers"], WRONG["phase1/returns-its-own-loss"]
    both = replace(first, patches=first.patches + second.patches).submission(COURSE)

    exercises = (first.exercise, second.exercise)
    reports = [grade(both, COURSE, phases=["phase1"], seed=3, exercises=[e]) for e in exercises]

    codes = [{v.diagnosis.code for v in report.verdicts if v.diagnosis} for report in reports]
    assert codes == [{first.code}, {second.code}]


@pytest.mark.parametrize("phase", PHASES)
def test_every_patch_leaves_files_that_python_reads(phase):
    plain = reference(COURSE).files

    for one in wrong_submissions(COURSE, phase):
        for name, content in one.submission(COURSE).files.items():
            if content != plain[name]:
                ast.parse(content, f"{one.name}: {name}")


def test_a_patch_that_does_not_fit_the_solution_is_refused():
    stray = replace(WRONG["phase1/forgets-to-divide"], patches=(("no such text", ""),))

    with pytest.raises(CourseError, match="found 0 times"):
        stray.submission(COURSE)


def test_a_correct_answer_is_the_solution_with_definitions_added():
    right = Right("mine", {"phase1/template_trainer.py": "def train():\n    pass\n"})

    files = right.submission(COURSE).files

    assert files["phase1/template_trainer.py"].endswith(b"\n\ndef train():\n    pass\n")
    assert (
        files["phase1/template_data_loader.py"]
        == (reference(COURSE).files["phase1/template_data_loader.py"])
    )
