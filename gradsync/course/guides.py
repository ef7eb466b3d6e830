"""The guides of a course: their texts and pictures, and the line counts in their tables.

A row of a table of exercises begins with a number and an exercise's name; the next cell is its
size, computed from the solution: "15 + 6" means 15 lines in the gaps of the template, and 6 lines
of helper functions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping

from gradsync.course.catalogue import Course
from gradsync.course.templates import BEGIN, END, make_template
from gradsync.reports.guide_sections import GuideText

GUIDE = "GUIDELINES.md"
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
GAP = re.compile(r'# TODO: about (\d+) lines?;.*\n\s*raise NotImplementedError\("\w+/(\w+)"\)')
ROW = re.compile(r"^(\| \d+ \| `(\w+)` \| )[^|]*( \|)", re.MULTILINE)


def guide_texts(course: Course) -> tuple[GuideText, ...]:
    """Return the guide of each phase that has one."""
    found = []
    for phase in course.phases:
        folder = course.root / phase
        if (folder / GUIDE).is_file():
            text = (folder / GUIDE).read_text(encoding="utf-8")
            names = (name for name in PICTURE.findall(text) if (folder / name).is_file())
            pictures = {name: (folder / name).read_bytes() for name in names}
            found.append(GuideText(f"{phase}/{GUIDE}", text, pictures))
    return tuple(found)


def guides(course: Course) -> Iterator[tuple[str, str]]:
    """Yield (path within the course, text) of every guide, with current sizes.

    A phase may have no guide.
    """
    for phase in course.phases:
        path = f"{phase}/{GUIDE}"
        if not (course.root / path).is_file():
            continue
        sizes: dict[str, str] = {}
        for file in course.files(phase):
            source = course.root / "solutions" / phase / file
            sizes |= exercise_sizes(source.read_text(encoding="utf-8"))
        yield path, with_sizes((course.root / path).read_text(encoding="utf-8"), sizes)


def with_sizes(guide: str, sizes: Mapping[str, str]) -> str:
    """Return a guide's text with the size of each exercise in its table."""
    return ROW.sub(lambda row: f"{row[1]}{sizes.get(row[2], '')}{row[3]}", guide)


def exercise_sizes(solution: str) -> dict[str, str]:
    """Return the size of each exercise of a solution's source text, "15" or "15 + 6"."""
    gaps: dict[str, int] = {}
    for lines, exercise in GAP.findall(make_template(solution, "phase")):
        gaps[exercise] = gaps.get(exercise, 0) + int(lines)
    helpers = _helper_sizes(solution, gaps)
    return {
        name: f"{gap} + {helpers[name]}" if helpers[name] else f"{gap}"
        for name, gap in gaps.items()
    }


def _helper_sizes(solution: str, exercises: Collection[str]) -> dict[str, int]:
    """Return how many lines of helpers each exercise uses; a shared one counts for the first."""
    lines = solution.splitlines()
    marked = _marked_lines(lines)
    body = ast.parse(solution).body
    unused = {name: node for node in body if node.lineno in marked for name in _names(node)}
    sizes = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in exercises:
            body = node.body if isinstance(node, ast.ClassDef) else []
            found = [part for part in body if part.lineno in marked]
            waiting: list[ast.AST] = [node]
            while waiting:
                used = {n.id for n in ast.walk(waiting.pop()) if isinstance(n, ast.Name)}
                taken = [unused.pop(name) for name in used & unused.keys()]
                found += taken
                waiting += taken
            sizes[node.name] = sum(_size(helper, lines) for helper in found)
    return sizes


def _marked_lines(lines: list[str]) -> set[int]:
    """Return the numbers of the lines between markers."""
    marked: set[int] = set()
    begun = 0
    for number, line in enumerate(lines, 1):
        if line.strip() == BEGIN:
            begun = number
        elif line.strip() == END:
            marked.update(range(begun, number))
    return marked


def _names(node: ast.stmt) -> list[str]:
    """Return the names that a top-level statement defines, except imports."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def _size(node: ast.stmt, lines: list[str]) -> int:
    decorators = getattr(node, "decorator_list", [])
    first = decorators[0].lineno if decorators else node.lineno
    return sum(1 for line in lines[first - 1 : node.end_lineno] if line.strip())
