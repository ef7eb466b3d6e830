"""`gradsync.notebook.check` and `grade`: in a shell, in a script, and in a kernel."""

from __future__ import annotations

import ast
import functools
import random
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import small_course
import torch
from IPython.core.interactiveshell import InteractiveShell
from report_samples import report
from traitlets.config import Config

import gradsync.notebook
from gradsync.course.catalogue import Course, CourseError
from gradsync.errors import SandboxError
from gradsync.grading import grade as grading
from gradsync.notebook import answer
from gradsync.notebook.answer import undisturbed
from gradsync.notebook.definitions.file import NotebookError
from gradsync.notebook.namespace import namespace_of

RIGHT = "def double(number):\n    return 2 * number"


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A small course whose file is a stub; it is the working folder."""
    made = small_course.write_course(tmp_path / "course")
    suite = made.suite("hidden", "phase1")
    visible = made.root / "tests" / "visible" / "phase1"
    shutil.copytree(suite, visible)
    file = made.root / "phase1" / "template_trainer.py"
    file.write_text('def double(number):\n    raise NotImplementedError("phase1/double")\n')
    monkeypatch.chdir(made.root)
    return made


@pytest.fixture
def shell():
    """An IPython without a terminal; `shell.run(...)` runs cells."""
    main = sys.modules["__main__"]
    InteractiveShell.clear_instance()
    config = Config({"HistoryManager": {"enabled": False}})
    made = InteractiveShell.instance(config=config)
    yield SimpleNamespace(
        run=lambda *cells: [made.run_cell(cell, store_history=True) for cell in cells][-1].result,
        names=made.user_ns,
    )
    made.restore_sys_module_state()
    InteractiveShell.clear_instance()
    sys.modules["__main__"] = main


def check(shell, name="double"):
    return gradsync.notebook.check("double", shell.names[name])


def test_a_right_answer_gets_all_points(course, shell):
    shell.run("print('an experiment')", RIGHT)

    result = check(shell)

    assert (result.score, result.max_score) == (2.0, 2.0)
    assert [verdict.status for verdict in result.verdicts] == ["passed", "passed"]


def test_a_wrong_answer_is_reported_with_its_cell(course, shell):
    shell.run("import math", "\ndef double(number):\n    return math.nothing")

    [verdict, _] = check(shell).verdicts

    assert verdict.status == "error"
    assert verdict.diagnosis.code == "exception"
    assert verdict.diagnosis.where == "In [2], line 3"
    assert "In [2], line 3" in verdict.message


def test_a_stub_is_still_to_write(course, shell):
    shell.run('def double(number):\n    raise NotImplementedError("phase1/double")')

    assert {verdict.status for verdict in check(shell).verdicts} == {"unfinished"}


def test_a_redefined_answer_is_checked_as_it_is_now(course, shell):
    shell.run("def double(number):\n    return 3 * number")
    before = check(shell).score
    shell.run(RIGHT)

    assert (before, check(shell).score) == (0.0, 2.0)


def test_a_syntax_error_in_another_cell_is_ignored(course, shell, capsys):
    shell.run(RIGHT, "def double(number:\n", "x = (")

    assert check(shell).score == 2.0


def test_an_answer_uses_helpers_and_magics_of_other_cells(course, shell):
    shell.run("import functools", "%autocall 0\nTWO = 2", "def times(n):\n    return n * TWO")
    shell.run("@functools.cache\ndef double(number):\n    return times(number)")

    assert check(shell).score == 2.0


@pytest.mark.parametrize(
    "cell",
    [
        "mine = lambda number: 2 * number",
        "import functools, operator\nmine = functools.partial(operator.mul, 2)",
        "def _mine(number):\n    return number + number\nmine = _mine",
        "import functools\ndef keep(f):\n    return functools.wraps(f)(lambda n: f(n))\n"
        "@keep\ndef mine(number):\n    return 2 * number",
        "class mine(int):\n    def __new__(cls, number):\n        return 2 * number",
    ],
    ids=["lambda", "partial", "alias", "decorated", "class"],
)
def test_an_answer_may_have_any_name_and_kind(course, shell, cell):
    shell.run("def double(number):\n    return 0", cell)

    assert check(shell, "mine").score == 2.0


def test_an_object_without_a_variable_is_found_by_its_own_name(course, shell):
    shell.run(RIGHT)

    assert gradsync.notebook.check("double", shell.names.pop("double")).score == 2.0


def test_an_answer_from_a_file_beside_the_notebook_is_read_there(course, shell, monkeypatch):
    monkeypatch.syspath_prepend(course.root)
    (course.root / "my_answers.py").write_text(f"def g(): pass\n\n{RIGHT} + nothing\n")
    shell.run("from my_answers import double as mine")

    [verdict, _] = check(shell, "mine").verdicts
    del sys.modules["my_answers"]

    assert verdict.diagnosis.where == "my_answers.py:4"


def test_names_that_the_notebook_lacks_come_from_the_learners_file(course, shell):
    file = course.root / "phase1" / "template_trainer.py"
    file.write_text("def helper(n):\n    return n + n\n\ndef double(n): pass\n")
    shell.run("helper = None", "del helper", "def double(n):\n    return globals()['helper'](n)")

    assert check(shell).score == 2.0


@pytest.mark.parametrize("lost", [lambda: 1, functools.partial(max, 1), 3, None])
def test_an_object_that_no_cell_defines_is_refused(course, shell, lost):
    with pytest.raises(NotebookError, match=r"No cell that has run defines this object"):
        gradsync.notebook.check("double", lost)


def test_an_object_of_a_cell_magic_is_refused(course, shell, capsys):
    shell.run(f"%%capture\n{RIGHT}")

    with pytest.raises(NotebookError, match=r"with the name double.*%%"):
        check(shell)


def test_an_unknown_exercise_is_refused(course, shell):
    with pytest.raises(
        CourseError, match=r"There is no exercise 'triple'\. The exercises are double"
    ):
        gradsync.notebook.check("triple", None)


def test_a_result_shows_itself_as_html_and_as_text(course, shell):
    shell.run(RIGHT)

    result = check(shell)
    forms = result._repr_mimebundle_(include=None, exclude=None)

    assert "2 of 2 points" in forms["text/html"]
    assert "2 of 2 points" in forms["text/plain"]
    assert f"seed={result.report.seed})" in forms["text/plain"]
    assert repr(result) == "Checked(score=2.0, max_score=2.0)"


def test_the_same_seed_gives_the_same_inputs(course, shell):
    shell.run("def double(number):\n    raise ValueError(number)")

    first, second = (
        gradsync.notebook.check("double", shell.names["double"], seed=7).verdicts[0].message
        for _ in range(2)
    )

    assert first == second


def test_grade_returns_points_and_shows_the_verdicts(course, shell, capsys):
    shell.run(RIGHT)

    points = gradsync.notebook.grade("double", shell.names["double"])
    said = capsys.readouterr()

    assert (points, type(points)) == (100.0, float)
    assert "100 of 100 points" in said.out
    assert said.err == ""


def test_grade_uses_the_visible_tests_if_there_are_no_hidden_ones(course, shell):
    shutil.rmtree(course.root / "tests" / "hidden")
    shell.run(RIGHT)

    assert gradsync.notebook.grade("double", shell.names["double"]) == 2.0


@pytest.mark.parametrize("has_sandbox", [True, False])
def test_grade_runs_in_a_sandbox_if_there_is_one(course, shell, monkeypatch, has_sandbox):
    def refused(_):
        raise SandboxError("not here")

    launchers = []
    monkeypatch.setattr(answer.sandbox, "check", (lambda _: None) if has_sandbox else refused)
    monkeypatch.setattr(answer, "get_launcher", lambda _: SimpleNamespace(warm_up=lambda: None))
    monkeypatch.setattr(
        grading, "grade", lambda *_, launcher, **__: launchers.append(launcher) or report()
    )
    shell.run(RIGHT)
    gradsync.notebook.grade("double", shell.names["double"])

    assert launchers == ["sandbox" if has_sandbox else None]


def test_a_stopped_check_says_so(course, shell, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(grading, "grade", interrupted)
    shell.run(RIGHT)

    with pytest.raises(answer.Stopped, match="The check of double was stopped"):
        check(shell)


def test_a_process_is_as_before_when_a_check_is_over(course, shell):
    def state():
        states = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
        suites = {name for name in sys.modules if "test_trainer" in name}
        return (*states, suites, sys.stdout, sys.stderr, sys.stdin, list(warnings.filters))

    shell.run(RIGHT)
    before = state()
    check(shell)

    assert all(map(_same, before, state()))


def _same(before, after):
    return torch.equal(before, after) if isinstance(before, torch.Tensor) else before == after


def test_the_number_of_threads_is_restored(tmp_path):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with undisturbed(tmp_path):
            torch.set_num_threads(1)

        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_only_cells_that_have_run_and_can_be_read_count(shell, capsys):
    shell.run("x = (", "def f():\n    return 1", "", "%who\n%time 1")

    cells = namespace_of(shell.names["f"]).cells

    assert [cell.label for cell in cells if cell.source] == ["In [2]", "In [3]"]


def test_in_a_script_the_source_is_the_script(course):
    script = course.root / "answers.py"
    script.write_text(
        "import gradsync.notebook\n\n"
        "def double(number):\n    return number + 1\n\n"
        "if __name__ == '__main__':\n"
        "    result = gradsync.notebook.check('double', double)\n"
        "    print(result.score, gradsync.notebook.grade('double', double))\n"
    )

    done = subprocess.run(
        [sys.executable, script.name], cwd=course.root, capture_output=True, text=True, check=False
    )

    assert done.stdout.splitlines()[-1] == "0.0 0.0"
    assert done.stderr == ""


# In a real kernel, on exercises of the course itself.

ROOT = Path(__file__).parents[3]
IMPORTS = "import torch\nimport torch.distributed as dist\nimport gradsync.notebook"
SUM = """
def average_gradients(model):
    for param in model.parameters():
        if param.requires_grad:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            dist.all_reduce(param.grad)
"""
MEAN = SUM + "            param.grad /= dist.get_world_size()\n"
STUB = 'def average_gradients(model):\n    raise NotImplementedError("phase1/average_gradients")'
ALONE = "def average_gradients(model):\n    if dist.get_rank() == 0:\n        dist.barrier()"
ENDLESS = "def average_gradients(model):\n    while True:\n        pass"
CHECK = 'gradsync.notebook.check("average_gradients", average_gradients)'
GRADE = 'gradsync.notebook.grade("average_gradients", average_gradients)'
STOP = f"""
import os, signal, threading
threading.Timer(1.5, os.kill, [os.getpid(), signal.SIGINT]).start()
{CHECK}
"""


@pytest.fixture(scope="module")
def kernel():
    """Run one notebook; return the outputs of a cell by its name."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    cells = {
        "imports": IMPORTS,
        "sum": SUM,
        "wrong": CHECK,
        "stub": STUB,
        "unfinished": CHECK,
        "alone": ALONE,
        "deadlock": CHECK,
        "mean": MEAN,
        "broken": "def average_gradients(:",
        "right": CHECK,
        "points": GRADE,
        "endless": ENDLESS,
        "stopped": STOP,
        "again": MEAN,
        "after": CHECK + ".score",
    }
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in cells.values()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the client itself causes warnings, as of its event loop
        nbclient.NotebookClient(
            notebook, timeout=120, allow_errors=True, resources={"metadata": {"path": str(ROOT)}}
        ).execute()
    return dict(zip(cells, (cell.outputs for cell in notebook.cells), strict=True))


def html(outputs):
    return "".join(output.get("data", {}).get("text/html", "") for output in outputs)


def test_a_kernel_shows_which_mistake_it_is_and_where(kernel):
    shown = html(kernel["wrong"])

    assert "<code>sum-not-mean</code>" in shown
    assert "<code>In [2], line 7</code>" in shown


def test_a_kernel_shows_what_is_still_to_write(kernel):
    assert "phase1/average_gradients is not written yet" in html(kernel["unfinished"])


def test_a_kernel_shows_a_deadlock_with_its_timeline(kernel):
    shown = html(kernel["deadlock"])

    assert "<code>deadlock-rank-missing</code>" in shown
    assert "In [6], line 3" in shown
    assert "returned without calling barrier" in shown
    assert "<svg" in shown


def test_a_kernel_checks_the_latest_definition(kernel):
    assert re.search(r"\b(\d+) of \1 points", html(kernel["right"]))


def test_the_last_value_of_a_grading_cell_is_its_points(kernel):
    result = kernel["points"][-1]

    assert result.output_type == "execute_result"
    assert float(result.data["text/plain"]) == 13.0
    assert "13 of 13 points" in html(kernel["points"])


def test_nothing_is_written_to_stderr(kernel):
    names = [o.name for outputs in kernel.values() for o in outputs if o.output_type == "stream"]

    assert "stderr" not in names


def test_a_check_can_be_stopped_and_leaves_the_kernel_usable(kernel):
    error = next(o for o in kernel["stopped"] if o.output_type == "error")

    assert (error.ename, error.evalue) == ("Stopped", "The check of average_gradients was stopped.")
    assert error.traceback == ["The check of average_gradients was stopped."]
    assert float(kernel["after"][-1].data["text/plain"]) > 0


def test_the_progress_of_a_check_is_removed(kernel):
    texts = [output.get("data", {}).get("text/plain", "") for output in kernel["stopped"]]

    assert not any("Checking" in text for text in texts)


def solution_cells(course, phase):
    """Yield the statements of a phase's solution, one for each cell, as one namespace."""
    for file in course.files(phase):
        text = (ROOT / "solutions" / phase / file).read_text()
        for node in ast.parse(text).body:
            is_sister = isinstance(node, ast.ImportFrom) and (node.module or "") + ".py" in (
                course.files(phase)
            )
            if not is_sister and not isinstance(node, ast.If):
                first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
                yield "\n".join(text.split("\n")[first - 1 : node.end_lineno])


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["phase1", "phase2"])
def test_a_solution_in_cells_gets_all_visible_points(phase, shell, monkeypatch):
    monkeypatch.chdir(ROOT)
    course = Course(ROOT)
    shell.run(*solution_cells(course, phase))

    for exercise in course.exercises(phase):
        result = gradsync.notebook.check(exercise.id, shell.names[exercise.name])

        assert result.score == result.max_score, str(result)
