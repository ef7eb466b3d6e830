"""The files of a release: the parts of a course that learners may see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradsync.course.catalogue import EXERCISES_FILE, Course, CourseError
from gradsync.course.codes import CODES_FILE
from gradsync.course.release.links import with_linked, without_dead_links
from gradsync.course.release.notebooks import notebooks
from gradsync.course.release.suites import tests_of
from gradsync.course.release.texts import texts
from gradsync.course.release.wheel import package_wheel
from gradsync.course.settings import SETTINGS_FILE
from gradsync.course.templates import BEGIN, END, make_template

GUIDE = "GUIDELINES.md"
# Copied if the course has them.
ROOT_FILES = (SETTINGS_FILE, "LICENSE", "constraints.txt")
LAUNCHING = "cluster"  # the folder of scripts for a cluster
DOCS = "docs"  # its pages are added if a guide, a notebook or another page links to them
WHEELS = "wheels"


def release_files(
    course: Course, phases: Sequence[str], *, self_study: bool = False
) -> dict[str, bytes]:
    """Return the files of a release by path, such as "phase1/GUIDELINES.md", sorted.

    Args:
        course: the course of its staff, with solutions and hidden tests.
        phases: the phases that learners get, such as "phase1".
        self_study: add the solutions and the hidden tests, for people without a teacher.

    Raises:
        CourseError: a part is missing, or a template contains a solution.
        UnusableInput: gradsync itself is not installed, so no wheel can be made of it.
    """
    wheel, package = package_wheel()
    wheel_path = f"{WHEELS}/{wheel}"
    found: dict[str, bytes] = {wheel_path: package}
    for name in ROOT_FILES:
        if (course.root / name).is_file():
            found[name] = (course.root / name).read_bytes()
    for path in sorted((course.root / LAUNCHING).glob("*.*")):
        found[f"{LAUNCHING}/{path.name}"] = path.read_bytes()
    for phase in phases:
        found |= _phase(course, phase)
    found |= tests_of(course, phases, ("visible", "hidden") if self_study else ("visible",))
    for phase in phases if self_study else ():
        for file in course.files(phase):
            name = f"solutions/{phase}/{file}"
            if not (course.root / name).is_file():
                raise CourseError(f"A copy for self-study needs {name}, which {course.root} lacks.")
            found[name] = (course.root / name).read_bytes()
    found |= notebooks(course, phases)
    found = with_linked(course.root, found, (*phases, DOCS))
    found |= texts(course, phases, wheel_path, found, self_study=self_study)
    return dict(sorted(without_dead_links(found).items()))


def _phase(course: Course, phase: str) -> Mapping[str, bytes]:
    """Return a phase's exercises, codes, guide and templates."""
    folder = course.root / phase
    found = {
        f"{phase}/{name}": (folder / name).read_bytes()
        for name in (EXERCISES_FILE, CODES_FILE, GUIDE, *course.given(phase))
        if (folder / name).is_file()
    }
    for file in course.files(phase):
        found[f"{phase}/{file}"] = template_of(course, phase, file).encode()
    return found


def template_of(course: Course, phase: str, file: str) -> str:
    """Return a template, made from the solution, or the course's file if there is no solution.

    Raises:
        CourseError: there is neither, or the template contains a marked solution.
    """
    solution, template = course.root / "solutions" / phase / file, course.root / phase / file
    if solution.is_file():
        return make_template(solution.read_text(encoding="utf-8"), phase)
    try:
        text = template.read_text(encoding="utf-8")
    except OSError:
        raise CourseError(
            f"There is neither {solution} nor {template}, which {phase}/{EXERCISES_FILE} names."
        ) from None
    if BEGIN in text or END in text:
        raise CourseError(
            f"{template} contains a marked solution. Move the file to {solution} and run "
            "`gradsync templates`."
        )
    return text
