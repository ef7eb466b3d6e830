"""The allowed imports between modules, and the sizes of modules and functions."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gradsync"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
    if "standins" not in path.parts
}
UNTRUSTED = {
    f"gradsync.ranks.{name}"
    for name in (
        *("worker", "watch", "reporting", "meetings", "ddp"),
        *("frames", "cells", "displays", "inbox"),
    )
}
# A layer may import only from its own and earlier layers.
LAYERS = [
    {"gradsync.records", "gradsync.errors", "gradsync.text", "gradsync.workplace"},
    {"gradsync.ranks", "gradsync.diagnose", "gradsync.reports"},
    {"gradsync.judge", "gradsync.verdicts", "gradsync.course", "gradsync.loading"},
    {"gradsync.plugin", "gradsync.testing", "gradsync.templates", "gradsync.submission"},
    {"gradsync.origin", "gradsync.suites", "gradsync.guides"},
    {"gradsync.grading", "gradsync.tracing", "gradsync.bank", "gradsync.handback"},
    {"gradsync.gradebook"},
    {"gradsync.notebook"},
    {"gradsync.nbgrader"},
    {"gradsync.cli", "gradsync.doctor"},
]


def imports_of(module: str) -> set[str]:
    """Return our modules that a module imports, anywhere in its code."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return {name for name in found if name in MODULES}


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def level_of(module: str) -> int | None:
    return next((i for i, rooms in enumerate(LAYERS) if room_of(module) in rooms), None)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_downwards(module):
    level = level_of(module)
    upwards = {
        other
        for other in imports_of(module)
        if level is not None
        and room_of(other) != room_of(module)
        and (level_of(other) or 0) > level
    }

    assert not upwards, f"{module} may not import {upwards}"


@pytest.mark.parametrize("module", sorted(m for m in MODULES if m.startswith("gradsync.reports")))
def test_reports_import_only_records_and_text(module):
    rooms = {room_of(other) for other in imports_of(module)}

    below = {"gradsync.records", "gradsync.errors", "gradsync.text"}
    assert rooms <= {*below, "gradsync.reports", "gradsync"}


@pytest.mark.parametrize("module", sorted(set(MODULES) - UNTRUSTED - {"gradsync.ranks.warm"}))
def test_the_trusted_side_never_imports_the_ranks_side(module):
    assert not imports_of(module) & UNTRUSTED


def test_there_is_no_import_cycle():
    graph = {module: imports_of(module) for module in MODULES if module != "gradsync"}

    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_module_or_function_is_too_long(module):
    source = MODULES[module].read_text()
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]

    assert source.count("\n") <= 300
    assert [f.name for f in functions if (f.end_lineno or 0) - f.lineno >= 50] == []


@pytest.mark.parametrize(
    "statement", ["import gradsync", "import gradsync.cli", "import gradsync.notebook"]
)
def test_importing_it_imports_no_torch(statement):
    code = f"import sys; {statement}; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("module", ["file", "locations"])
def test_notebook_definitions_import_no_heavy_packages(module):
    code = (
        f"import sys, gradsync.notebook.definitions.{module}; "
        "sys.exit(bool({'torch', 'IPython', 'nbgrader', 'pytest'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


NBGRADER = {
    f"gradsync.nbgrader.{name}"
    for name in ("autograde", "course_folder", "released", "source.stubs")
}


def test_only_modules_that_use_nbgrader_import_it():
    found = {
        module
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if (getattr(node, "module", None) or "").startswith("nbgrader")
        or any(alias.name.startswith("nbgrader") for alias in getattr(node, "names", ()))
    }

    assert found == NBGRADER


def test_the_commands_import_neither_ipython_nor_nbgrader():
    code = "import sys, gradsync.cli; sys.exit(bool({'IPython', 'nbgrader'} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
