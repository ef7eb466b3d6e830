"""The texts that only a release has: README, instructions for AI tutors, a workflow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gradsync.course.catalogue import Course
from gradsync.course.settings import read_settings
from gradsync.course.support import TRACED, TRAINED
from gradsync.text import listed

FILES = Path(__file__).parent / "files"
PLAIN = {
    ".github/workflows/check.yml": "check.yml",
    ".gitlab-ci.yml": "gitlab-ci.yml",
    ".gitignore": "gitignore",
}
PROGRAM = b'if __name__ == "__main__":'


def texts(
    course: Course,
    phases: Sequence[str],
    wheel: str,
    others: Mapping[str, bytes],
    *,
    self_study: bool,
) -> dict[str, bytes]:
    """Return the texts of a release, by path.

    Args:
        course: the course.
        phases: the phases in the release.
        wheel: the path of the wheel in the release.
        others: the release's other files, by path.
        self_study: whether the solutions and the hidden tests are among them.

    Raises:
        CourseError: course.toml can't be read.
    """
    about = _about(course, phases, others) | {"self_study": self_study}
    environment = Environment(
        loader=FileSystemLoader(FILES),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    found = {
        name: environment.get_template(f"{name}.j2").render(about)
        for name in ("README.md", "AGENTS.md")
    }
    found["requirements.txt"] = _requirements(f"./{wheel}[course]", "constraints.txt", others)
    if about["notebooks"]:
        found["notebooks/requirements.txt"] = _requirements(
            f"../{wheel}[notebooks]", "../constraints.txt", others
        )
    found |= {path: (FILES / name).read_text("utf-8") for path, name in PLAIN.items()}
    return {path: text.encode() for path, text in found.items()}


def _about(course: Course, phases: Sequence[str], others: Mapping[str, bytes]) -> dict[str, Any]:
    files = {phase: [f"{phase}/{file}" for file in course.files(phase)] for phase in phases}
    templates = [path for phase in phases for path in files[phase]]
    return {
        "title": read_settings(course.root).title,
        "phases": [
            {
                "name": f"Phase {phase.removeprefix('phase')}",
                "guide": f"[{guide}]({guide})" if guide in others else "",
                "files": ", ".join(f"`{path}`" for path in files[phase]),
            }
            for phase in phases
            for guide in [f"{phase}/GUIDELINES.md"]
        ],
        "templates": templates,
        "folders": listed(f"`{phase}/`" for phase in phases),
        "programs": list(_programs(templates, others)),
        "traced": _path(TRACED) in others,
        "trained": _path(TRAINED) in others,
        "notebooks": any(path.endswith(".ipynb") for path in others),
        "exercise_notebooks": any(path.startswith("notebooks/exercises/") for path in others),
    }


def _path(module: str) -> str:
    return f"tests/{module.replace('.', '/')}.py"


def _programs(paths: Sequence[str], contents: Mapping[str, bytes]) -> Iterator[str]:
    """Yield commands that run the first phase's first program, and its last one on two ranks."""
    runnable = [path for path in paths if PROGRAM in contents[path]]
    of_first_phase = [path for path in runnable if Path(path).parent == Path(paths[0]).parent]
    if of_first_phase:
        yield f"python {of_first_phase[0]}"
        yield f"torchrun --nproc_per_node 2 {of_first_phase[-1]}"


def _requirements(package: str, constraints: str, others: Collection[str]) -> str:
    """Return a requirements file; pip looks for the package in the folder in which it runs."""
    lines = [package]
    if "constraints.txt" in others:
        lines.insert(0, f"--constraint {constraints}")
    return "\n".join([*lines, ""])
