"""The files that Gradescope and PrairieLearn need to grade submissions of this course.

Both run a script in a container. It grades the submission with the hidden tests and exports the
grade. The files contain hidden tests, but no solution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gradsync.course.catalogue import EXERCISES_FILE, Course
from gradsync.course.release.wheel import package_wheel
from gradsync.course.settings import SETTINGS_FILE
from gradsync.grading.classes.merging import shared_seed
from gradsync.grading.fingerprint import course_digests
from gradsync.records import FIRST_PHASE

FILES = Path(__file__).parent / "files"
GRADESCOPE = ("setup.sh", "run_autograder", "grade.sh")
PRAIRIELEARN = ("Dockerfile", "entrypoint.sh", "info.json", "grade.sh")


def grading_files(
    course: Course, phases: Sequence[str], scripts: Sequence[str], seed: int | None
) -> dict[str, bytes]:
    """Return the files of the container that grades these phases, by path.

    Args:
        course: the course.
        phases: the phases to grade.
        scripts: the system's own files: `GRADESCOPE`, whose zip is uploaded, or `PRAIRIELEARN`,
            from which its image is built.
        seed: the seed of all runs; None calculates one from the hidden tests.

    Raises:
        CourseError: this copy of the course has no hidden tests for a phase.
        UnusableInput: gradsync itself is not installed.
    """
    wheel, package = package_wheel()
    if seed is None:
        seed = shared_seed(course_digests(course, phases), ())
    found = {name: (FILES / name).read_bytes() for name in scripts}
    found[wheel] = package
    found["seed.txt"] = f"{seed}\n".encode()
    requirements = f"./{wheel}[course]\n"
    if (course.root / "constraints.txt").is_file():
        found["constraints.txt"] = (course.root / "constraints.txt").read_bytes()
        requirements = f"--constraint constraints.txt\n{requirements}"
    found["requirements.txt"] = requirements.encode()
    for path in _of_course(course, phases):
        found[f"course/{path.relative_to(course.root).as_posix()}"] = path.read_bytes()
    return dict(sorted(found.items()))


def _of_course(course: Course, phases: Sequence[str]) -> Iterator[Path]:
    """Yield the files that grade these phases; every course has a first phase."""
    for phase in sorted({FIRST_PHASE, *phases}):
        yield course.root / phase / EXERCISES_FILE
    if (course.root / SETTINGS_FILE).is_file():
        yield course.root / SETTINGS_FILE
    for folder in (course.support, *(course.suite("hidden", phase) for phase in phases)):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path
