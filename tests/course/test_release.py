"""The learners' copy of this course shows no solution and no hidden test, and it works."""

import ast
import io
import json
import os
import posixpath
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gradsync.course.catalogue import find_course, read_toml
from gradsync.course.known_submissions import reference, wrong_submissions
from gradsync.course.release.contents import release_files
from gradsync.course.release.update import update
from gradsync.course.templates import BEGIN, END, make_template
from gradsync.reports.text import slug

COURSE = find_course(Path(__file__))
SHORT = 20  # characters; shorter lines are `return False`, `except ValueError:` and the like
# Lines of solutions that any program with torch may have.
ORDINARY = {
    "@torch.no_grad()",
    "began = time.perf_counter()",
    "beside.unlink(missing_ok=True)",
    "dist.all_reduce(total)",
    "dist.init_process_group(",
    "except Exception as error:",
    "except FileNotFoundError:",
    "except RuntimeError:",
    "for batch in loader:",
    "for epoch in range(epochs):",
    "def forward(self) -> Tensor:",
    "from collections import deque",
    "from collections.abc import Callable, Iterator",
    "from collections.abc import Iterator",
    "from contextlib import nullcontext",
    'for param in group["params"]:',
    "for param in model.parameters():",
    "for param in params:",
    "if dist.is_initialized():",
    "optimizer.zero_grad()",
    "outputs = model(inputs)",
    "return inputs.view_as(inputs)",
    "scaler.scale(loss).backward()",
    "use_cuda = torch.cuda.is_available()",
    "while time.monotonic() < until:",
    "world_size=info.world_size,",
    "with torch.enable_grad():",
    "with torch.no_grad():",
}


def released():
    """Return the text of each file of the release; those in the wheel, too."""
    texts = {}
    for path, content in release_files(COURSE, COURSE.phases).items():
        if path.endswith(".whl"):
            archive = zipfile.ZipFile(io.BytesIO(content))
            texts |= {name: archive.read(name).decode() for name in archive.namelist()}
        elif path.endswith(".ipynb"):
            cells = json.loads(content)["cells"]
            texts[path] = "\n".join("".join(cell["source"]) + str(cell) for cell in cells)
        else:
            texts[path] = content.decode()
    return texts


RELEASED = released()


def marked_lines(source):
    """Return the lines that a template of this solution does not have, in order."""
    inside, lines = False, []
    for line in map(str.strip, source.splitlines()):
        if line in (BEGIN, END):
            inside = line == BEGIN
        elif inside and line:
            lines.append(line)
    return lines


def solutions():
    for path in sorted((COURSE.root / "solutions").rglob("*.py")):
        yield path.relative_to(COURSE.root / "solutions").as_posix(), path.read_text()


TEMPLATE_LINES = {
    line.strip() for _, source in solutions() for line in make_template(source, "x").splitlines()
}


def leaks(texts):
    """Return (file, lines) of each long line, and of each run of three lines, of a solution."""
    known = TEMPLATE_LINES | ORDINARY
    telling = set()
    for _, source in solutions():
        lines = marked_lines(source)
        telling |= {(line,) for line in lines if len(line) >= SHORT and line not in known}
        runs = zip(lines, lines[1:], lines[2:], strict=False)
        telling |= {run for run in runs if len("".join(run)) >= 2 * SHORT}
    found = []
    for path, text in texts.items():
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        runs = {(line,) for line in lines} | set(zip(lines, lines[1:], lines[2:], strict=False))
        found += [(path, run) for run in telling & runs]
    return found


def hidden_sentences():
    """Return names and docstrings of hidden tests that visible tests do not have."""
    found = {"visible": set(), "hidden": set()}
    for audience, sentences in found.items():
        for path in (COURSE.root / "tests" / audience).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    sentences |= {node.name, (ast.get_docstring(node) or node.name).split("\n")[0]}
    return found["hidden"] - found["visible"]


def test_no_line_of_a_solution_is_in_the_release():
    assert leaks(RELEASED) == []


@pytest.mark.parametrize("path", [path for path, _ in solutions()])
def test_each_solution_would_be_found(path):
    source = (COURSE.root / "solutions" / path).read_text()

    assert not marked_lines(source) or len(leaks({path: source})) > 10


def test_the_wheel_carries_every_phase():
    built = read_toml(COURSE.root / "pyproject.toml")["tool"]["hatch"]["build"]["targets"]["wheel"]

    assert set(COURSE.phases) <= built["force-include"].keys()


def test_it_has_the_given_files():
    given = [f"{phase}/{name}" for phase in COURSE.phases for name in COURSE.given(phase)]

    assert given
    assert all(RELEASED[path] == (COURSE.root / path).read_text() for path in given)


def test_no_hidden_test_is_named():
    text = "\n".join(RELEASED.values())
    named = {
        s for s in hidden_sentences() if s in text and re.search(rf"{re.escape(s)}(?!\w)", text)
    }

    assert named == set()
    assert len(hidden_sentences()) > 100


def test_no_known_mistake_is_named():
    words = {word for text in RELEASED.values() for word in re.findall(r"[\w'-]+", text)}
    names = {w.name for phase in COURSE.phases for w in wrong_submissions(COURSE, phase)}

    assert {name for name in names if "-" in name} & words == set()


def test_no_folder_of_the_staff_is_in_it():
    tops = {"/".join(path.split("/")[:2]) for path in RELEASED}

    assert {path for path in tops if path.split("/")[0] in ("solutions", "benchmarks")} == set()
    assert {path for path in tops if path.startswith("tests/")} == {
        "tests/support",
        "tests/visible",
    }


def test_every_picture_and_notebook_is_in_it():
    pictures = {
        path.relative_to(COURSE.root).as_posix()
        for phase in COURSE.phases
        for path in (COURSE.root / phase / "pictures").iterdir()
    }
    notebooks = {f"notebooks/{path.name}" for path in (COURSE.root / "notebooks").glob("*.ipynb")}

    assert pictures | notebooks <= set(RELEASED)


def links(path, text):
    """Yield (link, file, anchor) of the local links of a page of the release."""
    if path.endswith(".ipynb"):
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    fences = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", fences.sub("", text)):
        if not target.startswith("http"):
            file, _, anchor = target.partition("#")
            full = posixpath.join(posixpath.dirname(path), file) if file else path
            yield target, posixpath.normpath(full), anchor


def headings(text):
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("phases", [COURSE.phases, COURSE.phases[:1]], ids=len)
def test_every_link_leads_to_a_file_and_a_heading_of_the_release(phases):
    files = release_files(COURSE, phases)
    pages = {path: files[path].decode() for path in files if path.endswith((".md", ".ipynb"))}
    found = [(path, *link) for path, text in pages.items() for link in links(path, text)]

    dead = [
        (path, link)
        for path, link, file, anchor in found
        if file not in files or (anchor and anchor not in headings(pages[file]))
    ]
    assert dead == []
    assert len(found) > 50


def test_the_release_of_all_phases_keeps_every_link():
    """Links are made plain text only if a part of the course is not released."""
    files = release_files(COURSE, COURSE.phases)
    pages = [path for path in files if path.endswith(".md") and (COURSE.root / path).is_file()]
    changed = [p for p in pages if files[p] != (COURSE.root / p).read_bytes() and p != "README.md"]

    assert changed == []


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A release with the reference solution in place of the templates, and its wheel unpacked."""
    out = tmp_path_factory.mktemp("learner") / "course"
    update(out, release_files(COURSE, COURSE.phases), COURSE.phases, None)
    [wheel] = (out / "wheels").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(out / ".site")
    for path, content in reference(COURSE).files.items():
        (out / path).write_bytes(content)
    return out


def run(copy, *arguments):
    environ = {**os.environ, "PYTHONPATH": str(copy / ".site")}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, cwd=copy, env=environ, check=False, capture_output=True, text=True
    )


def test_the_commands_come_from_the_wheel(copy):
    done = run(copy, "-c", "import gradsync; print(gradsync.__file__)")

    assert done.stdout.strip() == str(copy / ".site/gradsync/__init__.py")


@pytest.mark.slow
def test_a_right_solution_passes_every_visible_test_of_the_copy(copy):
    done = run(copy, "-m", "gradsync", "check", "--exit-code")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓") == sum(len(COURSE.exercises(phase)) for phase in COURSE.phases)
