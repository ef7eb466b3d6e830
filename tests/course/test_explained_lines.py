"""The lines of `codes.toml` do what it says: the right ones pass, the wrong ones get the code.

The files in `explained` answer some exercises with the right lines of all their meanings. A test
puts the wrong lines of one meaning in their place.
"""

import ast
import textwrap
from pathlib import Path

import pytest
from quick_part import drawn

from gradsync.course.catalogue import find_course
from gradsync.course.codes import meanings
from gradsync.course.known_submissions import reference
from gradsync.course.patches import patched
from gradsync.grading.grade import grade
from gradsync.submission import Submission

COURSE = find_course(Path(__file__))
ANSWERS = Path(__file__).parent / "explained"
PLACE = "THE_LINES"
# Their lines stand for more than a few lines, or for another part of the file.
NOT_APPLIED = {
    ("tensors-replaced", "phase1/broadcast_model"),
    ("forbidden-shortcut", "phase2/ring_all_reduce"),
    ("too-many-bytes", "phase2/ring_all_reduce"),
    ("wrong-output", "phase1/PaddedDistributedSampler"),
}


def answers():
    """Return the answers by exercise: the path of the file, and its text."""
    found = {}
    for path in ANSWERS.rglob("*.py"):
        text = path.read_text()
        names = {getattr(node, "name", None) for node in ast.parse(text).body}
        for exercise in COURSE.exercises(path.parent.name):
            if exercise.name in names and exercise.file == path.name:
                found[exercise.id] = path.relative_to(ANSWERS).as_posix(), text
    return found


ANSWERED = answers()
APPLIED = {
    f"{meaning.code}-{meaning.exercise.partition('/')[2]}": meaning
    for meaning in meanings(COURSE)
    if meaning.exercise in ANSWERED and (meaning.code, meaning.exercise) not in NOT_APPLIED
}


def with_wrong_lines(meaning):
    """Return the answer with the wrong lines in place of the right ones, equally indented."""
    marked = patched(ANSWERED[meaning.exercise][1], meaning.right, PLACE)
    margin = next(line for line in marked.splitlines() if PLACE in line).partition(PLACE)[0]
    return marked.replace(margin + PLACE, textwrap.indent(meaning.wrong.strip("\n"), margin))


def first_mistakes(exercise, text):
    """Return the codes of an answer that is appended to the solution, in the suite's order."""
    file = ANSWERED[exercise][0]
    files = dict(reference(COURSE).files)
    files[file] += f"\n\n{text}".encode()
    submission = Submission("explained", files)
    report = grade(
        submission, COURSE, phases=[file.partition("/")[0]], seed=3, exercises=[exercise]
    )
    wrong = [verdict for verdict in report.verdicts if verdict.status != "passed"]
    return [verdict.diagnosis.code if verdict.diagnosis else verdict.message for verdict in wrong]


@pytest.mark.parametrize("exercise", drawn({name: [name.partition("/")[0]] for name in ANSWERED}))
def test_the_right_lines_pass(exercise):
    assert first_mistakes(exercise, ANSWERED[exercise][1]) == []


@pytest.mark.parametrize("name", drawn({name: [m.exercise] for name, m in APPLIED.items()}))
def test_the_wrong_lines_get_the_code(name):
    meaning = APPLIED[name]

    assert first_mistakes(meaning.exercise, with_wrong_lines(meaning))[:1] == [meaning.code]


def test_all_wrong_lines_fit_into_an_answer():
    for meaning in APPLIED.values():
        ast.parse(with_wrong_lines(meaning))

    assert {(m.code, m.exercise) for m in meanings(COURSE)} >= NOT_APPLIED
