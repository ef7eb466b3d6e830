"""Kill a grader at each of its steps on files, and then run a second grader.

This is a separate program, because it forks: `python mortal_grader.py COURSE CLASS`. It prints the
gradebook of an undisturbed run as a line of JSON, then one line for each step: the gradebook, the
finished submissions, the submissions that the second grader graded, and the remaining files.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from report_samples import report, verdict

from gradsync.course.catalogue import Course
from gradsync.grading import store, tasks
from gradsync.grading.classes import entries, grade_class

ON_FILES = ("open", "os.mkdir", "os.remove", "os.rename")
KEPT = (store.LOCK, store.STATE, store.FACTS)
graded: list[str] = []


def fake_grade(submission, course, *, seed, **options):
    graded.append(submission.name)
    points = (seed + len(submission.files["phase1/template_trainer.py"])) % 7
    return report(verdict(points=points, max_points=100), submission=submission.name, seed=seed)


def grade_folder(course: Course, folder: Path, out: Path) -> None:
    found = entries.entries_at([folder], course, out, "gradsync grade")
    for _ in grade_class.grade_class(found, course, ["phase1"], out, seed=3):
        pass


def die_at(moment: int, out: Path) -> None:
    """Kill this process before step number `moment` on files in `out`."""
    steps = 0

    def count(event: str, arguments: tuple) -> None:
        nonlocal steps
        if event in ON_FILES and str(arguments[0]).startswith(str(out)):
            steps += 1
            if steps == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def is_killed(moment: int, course: Course, folder: Path, out: Path) -> bool:
    child = os.fork()
    if child == 0:
        die_at(moment, out)
        grade_folder(course, folder, out)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def main(root: str, folder: str) -> None:
    tasks.grade = fake_grade
    course = Course(Path(root))
    grade_folder(course, Path(folder), course.root / "undisturbed")
    print(json.dumps((course.root / "undisturbed" / "gradebook.csv").read_text()))
    moment = 1
    while is_killed(moment, course, Path(folder), out := course.root / f"out-{moment}"):
        finished = sorted(path.parent.name for path in out.glob("*/report.json"))
        graded.clear()
        grade_folder(course, Path(folder), out)
        left = [path.name for path in out.rglob(".*") if path.name not in KEPT]
        book = (out / "gradebook.csv").read_text()
        print(json.dumps({"book": book, "finished": finished, "graded": graded, "left": left}))
        moment += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
