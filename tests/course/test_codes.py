"""Every diagnosis code has a meaning that is true: it is reported, and a known mistake gets it."""

import ast
import importlib
import re
import textwrap
from pathlib import Path

import pytest

from gradsync.course.catalogue import find_course
from gradsync.course.codes import meanings
from gradsync.course.known_submissions import wrong_submissions

COURSE = find_course(Path(__file__))
MEANINGS = meanings(COURSE)
SUITES = [COURSE.root / "tests" / name for name in ("support", "visible", "hidden")]
# The parts of the package that find a code.
GRADER = [
    COURSE.root / "gradsync" / name
    for name in ("testing", "grading/suite", "ranks/deadlocks", "ranks/failures", "ranks/sandbox")
]
CODE = re.compile(r"[a-z]+(-[a-z]+)+")
OTHER_WORDS = {"a-b", "a-b-c", "child-pid", "non-iterator"}  # strings there that look like codes
# No submission of the bank gets these; tests of the engine make ranks that do.
OF_THE_ENGINE = {
    *("changed-in-flight", "never-awaited", "not-contiguous", "out-of-memory", "too-slow"),
}
KNOWN = {
    (one.code, one.exercise) for phase in COURSE.phases for one in wrong_submissions(COURSE, phase)
}
MODULES = {"torch": "torch", "dist": "torch.distributed", "nn": "torch.nn", "os": "os"}


def strings(folders):
    """Return all strings in the Python files of some folders."""
    return {
        node.value
        for folder in folders
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


USED = strings(SUITES + GRADER)


def trees(meaning):
    """Return the syntax trees of the wrong and of the right lines, as parts of a function."""
    return [
        ast.parse("def part():\n" + textwrap.indent(lines, "    "))
        for lines in (meaning.wrong, meaning.right)
    ]


def attributes(tree):
    """Yield (module, name) for each attribute of a module that the lines use."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in MODULES:
            yield MODULES[node.value.id], node.attr


def test_every_code_that_is_reported_has_a_meaning():
    codes = {text for text in USED if CODE.fullmatch(text)} | {code for code, _ in KNOWN}

    assert codes - OTHER_WORDS - {meaning.code for meaning in MEANINGS} == set()
    assert codes >= OTHER_WORDS
    assert len(codes) > 70


def test_every_meaning_is_of_a_code_that_is_reported():
    assert {meaning.code for meaning in MEANINGS} - USED == set()


def test_a_known_mistake_in_the_exercise_gets_the_code():
    of_any_exercise = {code for code, _ in KNOWN} | OF_THE_ENGINE

    missing = [
        (meaning.code, meaning.exercise)
        for meaning in MEANINGS
        if (meaning.exercise and (meaning.code, meaning.exercise) not in KNOWN)
        or meaning.code not in of_any_exercise
    ]
    assert missing == []


def test_an_exercise_has_one_meaning_of_a_code():
    keys = [(meaning.code, meaning.exercise) for meaning in MEANINGS]

    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("part", ["cause", "symptom"])
def test_a_text_is_one_line_of_sentences(part):
    texts = [getattr(meaning, part) for meaning in MEANINGS]

    assert [text for text in texts if text and not re.fullmatch(r"\w.*[.]", text)] == []
    assert max(map(len, texts)) <= 130


def test_the_lines_are_python_that_fits_into_a_narrow_terminal():
    for meaning in MEANINGS:
        wrong, right = trees(meaning)

        assert ast.dump(wrong) != ast.dump(right), meaning
        lines = (meaning.wrong + meaning.right).splitlines()
        assert max(map(len, lines)) <= 70, meaning


def test_the_lines_use_names_that_torch_has():
    used = {pair for meaning in MEANINGS for tree in trees(meaning) for pair in attributes(tree)}

    absent = [pair for pair in used if not hasattr(importlib.import_module(pair[0]), pair[1])]
    assert absent == []
    assert len(used) > 20


def test_every_section_exists():
    guides = [COURSE.root / phase / "GUIDELINES.md" for phase in COURSE.phases]
    headings = {
        (guide.parent.name, heading)
        for guide in guides
        for heading in re.findall(r"^#+ (.+)$", guide.read_text(), re.M)
    }

    absent = [
        (meaning.code, meaning.guide)
        for meaning in MEANINGS
        for phase in ([meaning.phase] if meaning.phase else COURSE.phases)
        if meaning.guide and (phase, meaning.guide) not in headings
    ]
    assert absent == []
