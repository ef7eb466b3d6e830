"""The self-study notebooks: they match their sources, run, and contain no solution."""

import re
from pathlib import Path

import nbformat
import pytest
from quick_part import drawn

from gradsync.course.catalogue import find_course
from gradsync.course.templates import BEGIN, END
from gradsync.reports.text import slug
from notebooks.build import HERE, read, run, sources

SOURCES = sources([])
LATE = {"12_what_it_costs"}  # it measures for half a minute
NAMES = [source.stem for source in SOURCES]
CHECK = re.compile(r"\bcheck\(\s*\"([\w/]+)\"")
LONG = 45  # characters; a line of a solution of this length is not written by chance
LARGEST = 600_000  # bytes

each_notebook = pytest.mark.parametrize("source", SOURCES, ids=NAMES)


def built(source):
    return nbformat.read(source.with_suffix(".ipynb"), as_version=4)


def code_of(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def without_outputs(notebook):
    """Return the content of a notebook without its outputs."""
    return [(cell.id, cell.cell_type, cell.source, cell.metadata) for cell in notebook.cells]


def test_the_notebooks_are_numbered_in_order():
    assert [name[:2] for name in NAMES] == [f"{number:02}" for number in range(1, len(NAMES) + 1)]
    assert sorted(path.stem for path in HERE.glob("*.ipynb")) == NAMES


@each_notebook
def test_the_notebook_matches_its_source(source):
    same = without_outputs(built(source)) == without_outputs(read(source))

    assert same, "The notebook is outdated. Run `make notebook-outputs`."


@each_notebook
def test_the_notebook_has_outputs(source):
    cells = code_of(built(source))

    assert [cell.source for cell in cells if cell.execution_count is None] == []
    assert any(cell.outputs for cell in cells)
    assert source.with_suffix(".ipynb").stat().st_size < LARGEST


@each_notebook
def test_only_cells_that_should_fail_have_failed(source):
    failed = [
        cell.source
        for cell in code_of(built(source))
        if any(output.output_type == "error" for output in cell.outputs)
        and "raises-exception" not in cell.metadata.get("tags", [])
    ]

    assert failed == []


@each_notebook
def test_no_output_names_a_folder_of_the_authors_machine(source):
    text = source.with_suffix(".ipynb").read_text(encoding="utf-8")

    assert str(HERE.parent) not in text
    assert "/tmp/" not in text


@pytest.mark.parametrize("name", drawn({name: ["a notebook"] for name in NAMES}, LATE))
def test_it_runs_from_top_to_bottom(name):
    run(read(HERE / f"{name}.py"))


def test_every_exercise_is_checked_in_one_notebook():
    course = find_course()
    checked = [
        course.find(name).id
        for source in SOURCES
        for name in CHECK.findall(source.read_text(encoding="utf-8"))
    ]

    every = [e.id for phase in course.phases for e in course.exercises(phase)]
    assert sorted(checked) == sorted(every)


def lessons():
    """Yield (exercise, its notebook's number) for all exercises, in the order of the course."""
    course = find_course()
    for phase in course.phases:
        for exercise in course.exercises(phase):
            yield exercise, int(Path(exercise.notebook).name[:2])


def test_the_exercises_and_their_notebooks_have_one_order():
    numbers = [number for _, number in lessons()]

    assert numbers == sorted(numbers)


@pytest.mark.parametrize("exercise", [exercise for exercise, _ in lessons()], ids=lambda e: e.id)
def test_an_exercise_and_its_section_are_linked(exercise):
    """Its notebook checks it and links to its section of the guide, which links back."""
    course = find_course()
    guide = (course.root / exercise.phase / "GUIDELINES.md").read_text(encoding="utf-8")
    source = (course.root / exercise.notebook).with_suffix(".py").read_text(encoding="utf-8")
    section = guide.partition(f"\n## {exercise.guide}\n")[2].partition("\n## ")[0]

    assert exercise.id in {course.find(name).id for name in CHECK.findall(source)}
    assert f"../{exercise.phase}/GUIDELINES.md#{slug(exercise.guide)}" in source
    assert f"(../{exercise.notebook})" in section


def solution_lines():
    """Yield the long lines of the solutions that learners must write."""
    course = find_course()
    for phase in course.phases:
        for file in course.files(phase):
            inside = False
            for line in (course.root / "solutions" / phase / file).read_text().splitlines():
                inside = (inside or BEGIN in line) and END not in line
                if inside and len(line.strip()) >= LONG:
                    yield line.strip()


@each_notebook
def test_it_contains_no_solution(source):
    text = source.read_text(encoding="utf-8")

    assert [line for line in solution_lines() if line in text] == []
