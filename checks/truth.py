"""`make truth`: grade all known submissions, and print the number of correct grades.

Each is graded by all hidden tests of its phase, in the order of a report, up to the first one that
fails. Mistakes are then checked by the visible tests in the same way. The script replaces the table
in docs/figures.md. With phases or names of submissions as arguments, it grades only these, and
leaves docs/figures.md as it is.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from gradsync.course.catalogue import Audience, find_course
from gradsync.course.known_submissions import Right, Wrong, right_submissions, wrong_submissions
from gradsync.grading.grade import grade
from gradsync.records import Verdict

COURSE = find_course(Path(__file__).parent)
SEED = 1
AT_ONCE = 3 * (os.cpu_count() or 1)  # while some wait for lost ranks, others can run
BEGIN, END = "<!-- written by `make truth` -->", "<!-- up to here -->"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The grade of a known submission."""

    known: Wrong | Right
    seconds: float
    first: Verdict | None  # the first verdict that is not "passed", in the order of a report
    visible: bool = True  # whether the visible tests catch a mistake

    @property
    def got(self) -> tuple[str, str] | None:
        """The exercise and the code of the first failure; None for full marks."""
        if self.first is None:
            return None
        code = self.first.diagnosis.code if self.first.diagnosis else "no code"
        return self.first.exercise, code

    @property
    def expected(self) -> tuple[str, str] | None:
        return (self.known.exercise, self.known.code) if isinstance(self.known, Wrong) else None

    @property
    def correct(self) -> bool:
        return self.got == self.expected

    def line(self) -> str:
        """Return a line that describes this outcome to a person."""
        line = f"{self.seconds:6.1f} s  {self.known.name}: {_words(self.got)}"
        line += ", MISSED by the visible tests" * (not self.visible)
        if self.correct:
            return line
        message = f": {self.first.message[:200]}" if self.first else ""
        return f"{line}, NOT {_words(self.expected)}{message}"


def _words(failure: tuple[str, str] | None) -> str:
    return f"{failure[1]} in {failure[0]}" if failure else "full marks"


def main(names: Sequence[str]) -> int:
    """Grade, print the table, write it into docs/figures.md without `names`; return the status."""
    phases = COURSE.graded_phases("hidden")
    bank = [known for phase in phases for known in _known(phase)]
    unknown = set(names).difference(phases, (known.name for known in bank))
    if unknown:
        print(f"Not a phase or a known submission: {', '.join(sorted(unknown))}.", file=sys.stderr)
        return 2
    began = time.monotonic()
    outcomes = []
    with ProcessPoolExecutor(AT_ONCE, mp_context=get_context("spawn")) as pool:
        asked = (known for known in bank if not names or {known.name, known.phase} & set(names))
        for job in as_completed([pool.submit(graded, known) for known in asked]):
            outcomes.append(job.result())
            print(outcomes[-1].line(), flush=True)
    text = table(outcomes, time.monotonic() - began)
    print(f"\n{text}")
    if not names:
        write_into(COURSE.root / "docs" / "figures.md", text)
    return int(not all(outcome.correct for outcome in outcomes))


def _known(phase: str) -> tuple[Wrong | Right, ...]:
    return (*right_submissions(COURSE, phase), *wrong_submissions(COURSE, phase))


def graded(known: Wrong | Right) -> Outcome:
    """Grade a submission by its phase, up to the first test that fails."""
    began = time.monotonic()
    first = _first_failure(known, "hidden")
    seconds = time.monotonic() - began
    visible = isinstance(known, Right) or _first_failure(known, "visible") is not None
    return Outcome(known, seconds, first, visible)


def _first_failure(known: Wrong | Right, audience: Audience) -> Verdict | None:
    report = grade(
        known.submission(COURSE),
        COURSE,
        phases=[known.phase],
        seed=SEED,
        audience=audience,
        exercises=[exercise.id for exercise in COURSE.exercises(known.phase)],  # in this order
        parallel=1,  # several are graded at a time
        pytest_options=["--exitfirst"],
    )
    return next((verdict for verdict in report.verdicts if verdict.status != "passed"), None)


def table(outcomes: Sequence[Outcome], seconds: float) -> str:
    """Return a Markdown table with a column for each phase, and the duration of the grading."""
    phases = sorted({outcome.known.phase for outcome in outcomes})
    rows = {"": phases, "---": ["---"] * len(phases)}
    for phase in phases:
        wrong = [o for o in outcomes if isinstance(o.known, Wrong) and o.known.phase == phase]
        right = [o for o in outcomes if isinstance(o.known, Right) and o.known.phase == phase]
        for what, good, of in (
            ("mistakes caught", [o for o in wrong if o.first], wrong),
            ("mistakes caught by the visible tests", [o for o in wrong if o.visible], wrong),
            ("expected diagnosis first", [o for o in wrong if o.correct], wrong),
            ("correct answers with full marks", [o for o in right if o.correct], right),
        ):
            rows.setdefault(what, []).append(f"{len(good)} of {len(of)}")
    lines = [f"| {' | '.join([what, *cells])} |" for what, cells in rows.items()]
    return "\n".join([*lines, "", f"Grading all of these took {seconds / 60:.1f} minutes."])


def write_into(page: Path, text: str) -> None:
    """Replace the table in docs/figures.md.

    Raises:
        ValueError: docs/figures.md has no marks around a table.
    """
    whole = page.read_text(encoding="utf-8")
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(
            f"{page} has no place for the table: {BEGIN} and {END}.\nThe table:\n{text}"
        )
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
