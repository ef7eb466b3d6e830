"""Grade again: what changed, and grades of further phases in the same report."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO

from gradsync.errors import UnusableInput
from gradsync.grading.suite.plugin import PHASE_POINTS
from gradsync.records import Report, Verdict
from gradsync.reports.gradebook import cell
from gradsync.reports.text import amount, csv_text, finite, printable
from gradsync.text import listed

COLUMNS = (
    *("graded_at", "submission", "score_before", "score_after", "max_before", "max_after"),
    *("test", "points_before", "points_after", "status_after"),
)
_SHOWN = 3  # tests of a submission that are named in a line
_LEAST = 0.005  # points; smaller differences come from rounding


@dataclass(frozen=True, slots=True)
class Change:
    """How the points of a submission changed when it was graded again, before corrections."""

    before: Report
    after: Report

    @property
    def tests(self) -> list[tuple[str, Verdict | None, Verdict | None]]:
        """The tests with other points: id, the verdict before, and after; None: no such test.

        The tests of a phase that only one of the reports has are not among them.
        """
        both = set(self.before.phases) & set(self.after.phases)
        old, new = (
            {each.id: each for each in report.verdicts if each.phase in both}
            for report in (self.before, self.after)
        )
        pairs = ((id, old.get(id), new.get(id)) for id in {**old, **new})
        return [(id, was, now) for id, was, now in pairs if _differ(was, now)]


def change_of(before: Report | None, after: Report) -> Change | None:
    """Return how points changed, perhaps in no test, or None if there was no grade before."""
    if before is None or before.problem or after.problem:
        return None
    return Change(before, after)


def changes_text(changes: Iterable[Change], previous: str) -> str:
    """Return changes.csv with further changes, a line for each test; the latest come last.

    Args:
        changes: the changes of a run.
        previous: the text of the file, "" if there is none.
    """
    rows: list[Sequence[object]] = [] if previous else [COLUMNS]
    for change in changes:
        before, after = change.before, change.after
        moment = after.graded_at.isoformat(" ", "seconds") if after.graded_at else ""
        scores = (before.score, after.score, before.max_score, after.max_score)
        start = [moment, cell(after.submission), *map(finite, scores)]
        for id, was, now in change.tests:
            points = ["" if test is None else finite(test.points) for test in (was, now)]
            rows.append([*start, cell(id), *points, now.status if now else "removed"])
    return previous + csv_text(rows)


def merged_changes(texts: Iterable[str]) -> str:
    """Return one changes.csv with the lines of several, the latest last."""
    lines = {tuple(row) for text in texts for row in csv.reader(StringIO(text))} - {COLUMNS}
    return csv_text([COLUMNS, *sorted(lines)])


def change_line(change: Change) -> str:
    """Return a line on a change: the scores, and the tests that changed them."""
    before, after = change.before, change.after
    most = f" of {amount(after.max_score)}"
    was = amount(before.score)
    if finite(before.max_score) != finite(after.max_score):
        was += f" of {amount(before.max_score)}"
    tests = change.tests
    names = [f"{id} {_points(was_)} -> {_points(now)}" for id, was_, now in tests[:_SHOWN]]
    if len(tests) > _SHOWN:
        names.append(f"{len(tests) - _SHOWN} more tests")
    return printable(f"{after.submission}: {was} -> {amount(after.score)}{most} ({listed(names)})")


def check_phases(known: set[str], phases: Sequence[str], folder: object, *, add: bool) -> None:
    """Check that a folder of grades has these phases and no others, or is to get further ones.

    Raises:
        UnusableInput: its scores would have different maxima, or points of a phase would be lost.
    """
    if add or not known or known == set(phases):
        return
    numbers = [phase.removeprefix("phase") for phase in sorted(known)]
    same = f" To grade the same again, use --phase {numbers[0]}." if len(numbers) == 1 else ""
    raise UnusableInput(
        f"{folder} has grades of {listed(sorted(known))}, but {listed(phases)} would be graded now."
        f"{same} With --add-phase, points of other phases are kept, and the scores are added. Or "
        "choose another folder with --out."
    )


def scaled(report: Report, points: Mapping[str, float]) -> Report:
    """Return a report with these maxima of phases; the default is `PHASE_POINTS`."""
    factors = {
        phase: points.get(phase, PHASE_POINTS) / most
        for phase, most in report.maxima.items()
        if most and abs(most - points.get(phase, PHASE_POINTS)) > _LEAST
    }
    if not factors:
        return report

    def verdict(each: Verdict) -> Verdict:
        factor = factors.get(each.phase, 1.0)
        return replace(each, points=factor * each.points, max_points=factor * each.max_points)

    return replace(report, verdicts=tuple(map(verdict, report.verdicts)))


def with_other_phases(new: Report, stored: Report | None) -> Report:
    """Return a report that also has the verdicts of a stored report on other phases.

    Raises:
        UnusableInput: the stored grade has another seed, and a report can name only one.
    """
    mine = set(new.phases)
    if stored is None or new.problem or not set(stored.phases) - mine:
        return new
    if stored.seed != new.seed:
        raise UnusableInput(
            f"it was graded with the seed {stored.seed}, so --add-phase needs --seed {stored.seed}"
        )
    kept = [each for each in stored.verdicts if each.phase not in mine]
    others = {each.phase for each in kept}
    notes = [note for note in stored.notes if any(phase in note for phase in others)]
    # phase10 after phase9
    verdicts = sorted((*kept, *new.verdicts), key=lambda each: (len(each.phase), each.phase))
    return replace(
        new,
        seconds=round(stored.seconds + new.seconds, 2),
        verdicts=tuple(verdicts),
        notes=tuple(dict.fromkeys((*notes, *new.notes))),
        prints=(*(p for p in stored.prints if p.path.partition("/")[0] in others), *new.prints),
        origins=(*(each for each in stored.origins if each.phase in others), *new.origins),
    )


def _differ(was: Verdict | None, now: Verdict | None) -> bool:
    if was is None or now is None:
        return True
    return abs(was.points - now.points) > _LEAST or abs(was.max_points - now.max_points) > _LEAST


def _points(verdict: Verdict | None) -> str:
    return "none" if verdict is None else amount(verdict.points)
