"""The allowed imports between modules."""

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
}
INSIDE = "gradsync.ranks.inside"
# These names divide the package into parts, which the code below calls rooms. A module belongs to
# the longest name that its own name starts with. It may import only from its own room and from
# rooms in earlier rows.
LAYERS = [
    ["gradsync.records", "gradsync.errors", "gradsync.text", "gradsync.temporary_folders"],
    ["gradsync.cores", "gradsync.finding"],
    ["gradsync.class_records", "gradsync.ranks.fast", "gradsync.review"],
    ["gradsync.ranks.protocol", "gradsync.reports", "gradsync.submission"],
    ["gradsync.ranks.sandbox"],
    ["gradsync.ranks.deadlocks", "gradsync.ranks.task", INSIDE],
    ["gradsync.ranks.failures"],
    ["gradsync.ranks.host"],
    ["gradsync.ranks.warm_program", "gradsync.ranks.flight_recorder", "gradsync.ranks.schedules"],
    ["gradsync.ranks.run"],
    ["gradsync.ranks"],
    ["gradsync.testing", "gradsync.pytest_plugin", "gradsync.cases"],
    ["gradsync.course", "gradsync.model"],
    ["gradsync.mnist"],
    ["gradsync.grading", "gradsync.data"],
    ["gradsync.notebook", "gradsync.doctor", "gradsync.launch", "gradsync.exporting"],
    ["gradsync.scale"],
    ["gradsync.nbgrader"],
    ["gradsync.cli"],
    ["gradsync", "gradsync.__main__"],
]
ROOMS = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}


def imports_of(module: str) -> set[str]:
    """Return the modules of this package that a module imports, anywhere in its code."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return {name for name in found if name in MODULES}


def room_of(module: str) -> str:
    """Return the longest name in LAYERS that a module's name starts with, or the module's name."""
    parts = module.split(".")
    beginnings = [".".join(parts[:length]) for length in range(len(parts), 1, -1)]
    return next((name for name in beginnings if name in ROOMS), module)


@pytest.fixture(scope="module")
def imports():
    """For each module, the modules of this package that it imports."""
    return {module: imports_of(module) for module in MODULES}


def test_each_module_belongs_to_a_layer():
    assert [module for module in MODULES if room_of(module) not in ROOMS] == []


def test_each_module_imports_only_from_its_own_and_earlier_parts(imports):
    upward = {
        (module, other)
        for module, others in imports.items()
        for other in others
        if room_of(other) != room_of(module) and ROOMS[room_of(other)] >= ROOMS[room_of(module)]
    }

    assert upward == set()


def test_one_trusted_module_imports_the_code_that_runs_in_ranks(imports):
    trusted = {
        module
        for module, others in imports.items()
        if not module.startswith(INSIDE) and any(other.startswith(INSIDE) for other in others)
    }

    assert trusted == {"gradsync.ranks.warm_program"}


def test_code_that_runs_in_ranks_imports_only_the_protocol_and_the_optimisations(imports):
    inside = [others for module, others in imports.items() if module.startswith(INSIDE)]

    rooms = {room_of(other) for others in inside for other in others}

    assert rooms <= {INSIDE, "gradsync.ranks.protocol", "gradsync.ranks.fast", "gradsync.records"}


def test_there_is_no_import_cycle(imports):
    graph = {module: others for module, others in imports.items() if module != "gradsync"}

    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("module", ["gradsync", "gradsync.notebook", "gradsync.pytest_plugin"])
def test_importing_it_imports_no_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("module", ["file", "locations"])
def test_notebook_definitions_import_no_heavy_packages(module):
    code = (
        f"import sys, gradsync.notebook.definitions.{module}; "
        "sys.exit(bool({'torch', 'IPython', 'nbgrader', 'pytest'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


NBGRADER = {f"gradsync.nbgrader.{name}" for name in ("autograde", "course_folder", "source.stubs")}


def test_only_modules_that_use_nbgrader_import_it():
    found = {
        module
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if (getattr(node, "module", None) or "").startswith("nbgrader")
        or any(alias.name.startswith("nbgrader") for alias in getattr(node, "names", ()))
    }

    assert found == NBGRADER


def test_the_commands_import_neither_torch_nor_ipython_nor_nbgrader():
    code = (
        "import sys; from gradsync.cli.app import COMMANDS, complete; [*map(complete, COMMANDS)]; "
    )
    code += "sys.exit(bool({'torch', 'IPython', 'nbgrader'} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
