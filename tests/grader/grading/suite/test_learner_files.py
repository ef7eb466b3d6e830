"""Loading a learner's file before its tests: failed imports and stubs."""

import pytest
from small_course import PLAIN_SUITE, write_course

from gradsync.grading.grade import grade
from gradsync.grading.suite import learner_files
from gradsync.grading.suite.import_probe import stubs
from gradsync.submission import Submission


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return write_course(tmp_path_factory.mktemp("course"), PLAIN_SUITE)


def verdicts(course, source):
    submission = Submission("ada", {"phase1/template_trainer.py": source.encode()})
    return grade(submission, course, phases=["phase1"], seed=1).verdicts


@pytest.mark.parametrize(
    ("source", "status", "said"),
    [
        ("def double(number:\n", "error", "syntax error in line 1: '(' was never closed"),
        ("import sys\n\nsys.exit(0)\n", "crashed", "line 3 ends the process with SystemExit(0)"),
        ("import os\n\nos._exit(4)\n", "crashed", "can't be imported. Rank 0 exited with"),
        ("answer = input()\n", "error", "line 1 raises EOFError"),
        (
            "import torch.distributed as d\nd.init_process_group()\n",
            "error",
            "line 2 starts a",
        ),
        ("from my_utils import x\n", "error", "only the course's files are handed in"),
    ],
)
def test_a_file_that_can_not_be_imported_gives_one_message(course, source, status, said):
    seen = verdicts(course, source)

    assert len({verdict.message for verdict in seen}) == 1
    assert {verdict.status for verdict in seen} == {status}
    assert all(verdict.diagnosis.whole_file for verdict in seen)
    assert said in seen[0].message


def test_an_endless_import_times_out_once(course, monkeypatch):
    monkeypatch.setattr("gradsync.grading.suite.learner_files.TIME_LIMIT", 1.0)

    seen = verdicts(course, "while True:\n    pass\n")

    assert {verdict.status for verdict in seen} == {"timeout"}
    assert "the import does not end. It is still at template_trainer.py:" in seen[0].message
    assert min(verdict.seconds for verdict in seen) < 1.0  # the last test does not wait again


@pytest.mark.parametrize(
    ("broken", "runs"),
    [("while True:\n    pass\n", 2), ("def halve(number:\n", 2), ("import os\nos._exit(0)\n", 3)],
)
@pytest.mark.parametrize("standin", ["", "def halve(number):\n    return number\n"])
def test_a_file_that_can_not_be_imported_costs_only_what_calls_it(
    monkeypatch, tmp_path, broken, runs, standin
):
    course = write_course(tmp_path, PLAIN_SUITE)
    entries = (course.root / "phase1/exercises.toml").read_text()
    other = entries.replace("double", "halve").replace("template_trainer", "template_data_loader")
    (course.root / "phase1/exercises.toml").write_text(other + entries)
    if standin:
        course.standins("phase1").mkdir(parents=True)
        (course.standins("phase1") / "template_data_loader.py").write_text(standin)
    monkeypatch.setattr("gradsync.grading.suite.learner_files.PROCESSOR_SECONDS", 0.5)
    tried = []
    plain = learner_files._observe
    monkeypatch.setattr(
        learner_files, "_observe", lambda *given: tried.append(given[1]) or plain(*given)
    )
    trainer = "from phase1.template_data_loader import halve, other\n\n\n"
    trainer += "def double(number):\n    return "

    def tested(calls):
        files = {"template_data_loader": broken, "template_trainer": trainer + calls}
        sources = {f"phase1/{file}.py": source.encode() for file, source in files.items()}
        return grade(
            Submission("ada", sources), course, phases=["phase1"], seed=1, parallel=1
        ).verdicts

    alone, calling = tested("number\n"), tested("halve(number)\n")

    assert [verdict.status for verdict in alone] == ["failed", "failed", "passed"]
    assert len(tried) == 2 * runs
    assert [verdict.status for verdict in calling] == (
        ["failed", "failed", "passed"] if standin else ["error"] * 3
    )
    said = "halve can't be used: template_data_loader.py is missing or can't be imported."
    assert (said in calling[2].message) == (not standin)


@pytest.mark.parametrize(
    "body",
    [
        "pass",
        "...",
        '"""Double it."""',
        "return None  # TODO",
        "raise NotImplementedError",
        "return",
    ],
)
def test_a_stub_is_unfinished_if_its_test_fails(course, body):
    seen = verdicts(course, f"def double(number):\n    {body}\n")

    raises = body.startswith("raise")
    assert [verdict.status for verdict in seen] == [
        "unfinished",
        "unfinished",
        "unfinished" if raises else "passed",
    ]
    assert seen[0].message == "phase1/double is not written yet."


def test_a_function_with_a_body_is_not_a_stub(course):
    seen = verdicts(course, "def double(number):\n    return number\n")

    assert [verdict.status for verdict in seen] == ["failed", "failed", "passed"]


def test_stubs_are_functions_and_classes_without_a_body():
    source = '''
def empty(): pass
def rewritten(): pass
def rewritten(): return 1
class Whole:
    """Say it."""
    def __init__(self): raise NotImplementedError("phase1/Whole")
    def __len__(self): ...
class Begun:
    def __init__(self): self.x = 1
    def __len__(self): ...
class Derived(Exception): pass
async def later(): return None
def works(x): x.clear()
'''

    assert set(stubs(source.encode())) == {"empty", "Whole", "Derived", "later"}


def test_a_folder_beside_the_package_can_not_be_imported(course):
    seen = verdicts(course, "import tests\n")

    assert "only the course's files are handed in" in seen[0].message


def test_a_file_can_be_imported_from_its_phase(course):
    source = (
        "from phase1 import template_trainer as me\n\n\ndef double(number):\n    return number\n"
    )

    assert [verdict.status for verdict in verdicts(course, source)] == [
        "failed",
        "failed",
        "passed",
    ]
