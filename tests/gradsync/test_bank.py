"""Every known mistake gets its code, and every correct answer gets full marks.

Each mistake is graded by the tests of its own exercise, a correct answer of phase 1 by all, and one
of phase 2 by those of the exercises that it writes anew: the rest is left to `make truth`. So is
the training of whole answers of phase 2, whose ranks are killed: after that gloo itself can hang.
"""

import ast
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from gradsync.bank import Right, Wrong, reference, right_submissions, wrong_submissions
from gradsync.course import CourseError, find_course
from gradsync.grading import grade
from gradsync.records import Report

COURSE = find_course(Path(__file__).parent)
PHASES = COURSE.graded_phases("hidden")
WHOLE = "phase1"
WRONG = {
    f"{one.phase}/{one.name}": one for phase in PHASES for one in wrong_submissions(COURSE, phase)
}
RIGHT = {
    f"{one.phase}/{one.name}": one for phase in PHASES for one in right_submissions(COURSE, phase)
}
LEAST = {"phase1": (80, 20), "phase2": (60, 15)}  # wrong ones, right ones
AT_ONCE = 4  # on two cores: while ranks wait for each other, others run
SEED = 3


def grade_one(key):
    """Grade a wrong one by its exercise's tests up to the first failure, a right one whole."""
    known = WRONG.get(key) or RIGHT[key]
    if isinstance(known, Wrong):
        return grade_by(known, exercise=known.exercise, pytest_options=["--exitfirst"])
    if known.phase == WHOLE:
        return grade_by(known)
    verdicts = [
        verdict
        for exercise in COURSE.exercises(known.phase)
        if exercise.name in names_in(known) and not (known.whole and exercise.name == "train")
        for verdict in grade_by(known, exercise=exercise.id).verdicts
    ]
    return Report(known.name, seed=SEED, seconds=0.0, verdicts=tuple(verdicts))


def grade_by(known, **options):
    options |= {"phases": [known.phase], "seed": SEED, "workers": 1}  # several are graded at a time
    return grade(known.submission(COURSE), COURSE, **options)


def names_in(right):
    """Return the functions and classes that a correct answer writes anew."""
    trees = [ast.parse(text) for text in right.additions.values()]
    return {node.name for tree in trees for node in tree.body if hasattr(node, "name")}


@pytest.fixture(scope="module")
def graded(request):
    """Grade all that are asked for side by side; a function from a name to its report."""
    asked = [item.callspec.params["key"] for item in request.session.items if _is_ours(item)]
    with ProcessPoolExecutor(AT_ONCE, mp_context=get_context("spawn")) as pool:
        asked.sort(key=lambda key: key in WRONG)  # what takes longest first
        reports = {key: pool.submit(grade_one, key) for key in asked}
        yield lambda key: reports[key].result()
        pool.shutdown(cancel_futures=True)


def _is_ours(item):
    return item.path == Path(__file__) and "key" in getattr(
        getattr(item, "callspec", None), "params", {}
    )


@pytest.mark.parametrize("key", WRONG)
def test_a_known_mistake_costs_points_and_is_named(graded, key):
    verdicts = graded(key).verdicts

    failed = [verdict for verdict in verdicts if verdict.status != "passed"]
    assert failed, "it got full marks"
    assert failed[0].points == 0 < failed[0].max_points
    assert failed[0].diagnosis is not None, failed[0].message
    assert failed[0].diagnosis.code == WRONG[key].code, failed[0].message


@pytest.mark.parametrize("key", RIGHT)
def test_a_correct_answer_gets_full_marks(graded, key):
    report = graded(key)

    lost = {
        verdict.id: verdict.message for verdict in report.verdicts if verdict.status != "passed"
    }
    assert lost == {}
    assert report.score == report.max_score >= (95 if key.startswith(WHOLE) else 2)


@pytest.mark.parametrize("phase", PHASES)
def test_the_bank_is_large_and_every_exercise_has_its_share(phase):
    wrong = wrong_submissions(COURSE, phase)
    per_exercise = Counter(one.exercise for one in wrong)

    least_wrong, least_right = LEAST[phase]

    assert len(wrong) >= least_wrong
    assert len(right_submissions(COURSE, phase)) >= least_right
    assert set(per_exercise) == {exercise.id for exercise in COURSE.exercises(phase)}
    assert min(per_exercise.values()) >= 3


def test_no_two_in_the_bank_have_the_same_name():
    wrong = [one.name for phase in PHASES for one in wrong_submissions(COURSE, phase)]
    right = [one.name for phase in PHASES for one in right_submissions(COURSE, phase)]

    assert [name for name, count in Counter(wrong + right).items() if count > 1] == []


def test_every_code_of_the_bank_stands_in_a_guide():
    guides = [(COURSE.root / phase / "GUIDELINES.md").read_text() for phase in PHASES]

    codes = {one.code for one in WRONG.values()}

    assert [code for code in sorted(codes) if f"`{code}`" not in "".join(guides)] == []


def test_two_mistakes_in_one_submission_are_both_found():
    first, second = WRONG["phase1/forgets-the-buffers"], WRONG["phase1/returns-its-own-loss"]
    both = replace(first, patches=first.patches + second.patches).submission(COURSE)

    exercises = (first.exercise, second.exercise)
    reports = [grade(both, COURSE, phases=["phase1"], seed=3, exercise=e) for e in exercises]

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

    with pytest.raises(CourseError, match="occurs 0 times"):
        stray.submission(COURSE)


def test_a_right_one_is_the_solution_with_definitions_added():
    right = Right("mine", {"phase1/template_trainer.py": "def train():\n    pass\n"})

    files = right.submission(COURSE).files

    assert files["phase1/template_trainer.py"].endswith(b"\n\ndef train():\n    pass\n")
    assert (
        files["phase1/template_data_loader.py"]
        == (reference(COURSE).files["phase1/template_data_loader.py"])
    )
