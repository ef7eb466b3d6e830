"""The package contains no name of this course's exercises and no code of its mistakes."""

import ast
import re
from pathlib import Path

from gradsync.course.catalogue import find_course
from gradsync.course.codes import meanings
from gradsync.course.known_submissions import wrong_submissions

COURSE = find_course(Path(__file__))
PACKAGE = COURSE.root / "gradsync"
# Codes from the engine, the grader, or the rules of `gradsync.testing`.
OF_THE_PACKAGE = {meaning.code for meaning in meanings(None)}
NAMES = {exercise.name for phase in COURSE.phases for exercise in COURSE.exercises(phase)}
WRONG = [wrong for phase in COURSE.phases for wrong in wrong_submissions(COURSE, phase)]
MISTAKES = {wrong.name for wrong in WRONG if "-" in wrong.name}
CODES = {wrong.code for wrong in WRONG}
CODES |= {
    code
    for folder in ("support/rules", "visible", "hidden")
    for path in (COURSE.root / "tests" / folder).rglob("*.py")
    for code in re.findall(r'"([a-z]+(?:-[a-z]+)+)"', path.read_text())
}
# Words such as `train` are also ordinary English, and names of other things.
ORDINARY = {name for name in NAMES if re.fullmatch("[a-z]+", name)}
OTHER_THINGS = {("mnist.py", "train")}  # the names of its files
OTHER_THINGS |= {("app.py", "train"), ("placement.py", "train")}  # the command `gradsync train`
OTHER_THINGS |= {("torch_api.py", "train")}  # a method of nn.Module
OTHER_THINGS |= {("gradients.py", "clip_grad_norm_")}  # torch's function


def mentions(text, words):
    """Return those of `words` that a text contains, but not as a part of a longer word."""
    found = (word for word in words if word in text)  # avoids slow searches for all other words
    return {w for w in found if re.search(rf"(?<![\w-]){re.escape(w)}(?![\w-])", text)}


def uses(source, words):
    """Return those of `words` that Python code calls, reads as an attribute, or has as a string."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(node.func.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant):
            found.add(node.value)
    return {word for word in words if word in found}


def known_to(path):
    """Return the course's names and codes that a file of the package contains."""
    source = path.read_text()
    found = mentions(source, (NAMES - ORDINARY) | MISTAKES | (CODES - OF_THE_PACKAGE))
    if path.suffix == ".py":
        found |= uses(source, ORDINARY)
    return {word for word in found if (path.name, word) not in OTHER_THINGS}


def test_no_file_of_the_package_mentions_the_course():
    paths = [path for kind in ("py", "j2", "toml") for path in PACKAGE.rglob(f"*.{kind}")]
    known = {path.relative_to(PACKAGE): known_to(path) for path in paths}

    assert {path: words for path, words in known.items() if words} == {}


def test_names_and_codes_are_found():
    assert mentions('"phase1/average_gradients"', {"average_gradients", "gradients"}) == {
        "average_gradients"
    }
    assert mentions("# such as sum-not-mean", {"sum-not-mean", "not-mean"}) == {"sum-not-mean"}
    assert uses("loss = trainer.train(model)", ORDINARY) == {"train"}
    assert uses("evaluate(model)", ORDINARY) == {"evaluate"}
    assert uses("train = Part(); part(train)", ORDINARY) == set()
    assert {"train", "evaluate"} <= ORDINARY
