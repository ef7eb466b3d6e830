"""Every sentence of an exercise's docstring has a visible test, and no hidden test asks for more.

`promises/PHASE.toml` has an entry for each sentence, under the name of its exercise:

- `visible` and `hidden` name the tests that hold it. All are tests of this exercise.
- `allowed` instead names answers in `tests/known/right` that do what the sentence permits.
- `defines = true` instead marks a sentence that only explains a word, an argument or a case.

What both suites check is in `tests/support/promises`, so that a hidden test asks what a visible one
asks, with other inputs.
"""

import ast
import inspect
import re
from pathlib import Path

import pytest

from gradsync.course.catalogue import find_course, read_toml
from gradsync.course.known_submissions import right_submissions

COURSE = find_course(Path(__file__).parent)
TABLES = {path.stem: read_toml(path) for path in Path(__file__).parent.glob("promises/*.toml")}
BEGINS = re.compile(r"\n(?=\s*\n|- | {4}\w+: )")  # a paragraph, an item, or an argument
SECTION = re.compile(r"^(Args|Returns|Raises|Yields):\s*")
EXERCISES = [
    pytest.param(exercise, id=exercise.id) for p in TABLES for exercise in COURSE.exercises(p)
]


def sentences(docstring):
    parts = [" ".join(part.split()) for part in BEGINS.split(inspect.cleandoc(docstring))]
    parts = [SECTION.sub("", part).removeprefix("- ") for part in parts]
    return [one for part in parts if part for one in re.split(r"(?<=\.) (?=[A-Z`])", part)]


def promised(exercise):
    """Return the sentences of the docstrings of an exercise and of its methods."""
    tree = ast.parse((COURSE.root / exercise.phase / exercise.file).read_text())
    [definition] = (node for node in tree.body if getattr(node, "name", "") == exercise.name)
    kinds = ast.FunctionDef, ast.ClassDef
    parts = [node for node in ast.walk(definition) if isinstance(node, kinds)]
    return [one for part in parts for one in sentences(ast.get_docstring(part) or "")]


def names_of(exercise, audience):
    """Return the names of the tests of an exercise."""
    paths = COURSE.suite(audience, exercise.phase).glob("test_*.py")
    return {
        node.name
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and any(f"exercise('{exercise.id}'" in ast.unparse(mark) for mark in node.decorator_list)
    }


def checks_of(phase, audience):
    """Return the functions of `support.promises` that a suite calls: "steps.batch_moved"."""
    trees = [ast.parse(path.read_text()) for path in COURSE.suite(audience, phase).glob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    modules = {
        alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == "support.promises"
        for alias in node.names
    }
    called = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
    return {name for name in called if name.partition(".")[0] in modules}


def entries(exercise):
    return TABLES[exercise.phase].get(exercise.name, [])


@pytest.mark.parametrize("exercise", EXERCISES)
def test_every_sentence_has_an_entry(exercise):
    assert sorted(entry["says"] for entry in entries(exercise)) == sorted(promised(exercise))


@pytest.mark.parametrize("exercise", EXERCISES)
def test_every_promise_has_a_visible_test(exercise):
    def held(entry):
        return entry.get("visible") or entry.get("allowed") or entry.get("defines") is True

    assert [entry["says"] for entry in entries(exercise) if not held(entry)] == []


@pytest.mark.parametrize("audience", ["visible", "hidden"])
@pytest.mark.parametrize("exercise", EXERCISES)
def test_every_test_asks_for_a_promise_with_a_visible_test(exercise, audience):
    asked = {
        name
        for entry in entries(exercise)
        if entry.get("visible")
        for name in entry.get(audience, [])
    }

    assert asked == names_of(exercise, audience)


@pytest.mark.parametrize("phase", TABLES)
def test_the_hidden_suite_checks_only_what_the_visible_suite_checks(phase):
    builders = {"evaluation.is_telling"}  # it makes inputs

    assert checks_of(phase, "hidden") - builders <= checks_of(phase, "visible")


@pytest.mark.parametrize("exercise", EXERCISES)
def test_every_allowed_answer_is_a_known_one(exercise):
    known = {right.name for right in right_submissions(COURSE, exercise.phase)}

    assert {name for entry in entries(exercise) for name in entry.get("allowed", [])} <= known
