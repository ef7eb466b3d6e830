"""Measure the findings of `gradsync review` on public repositories that were judged by hand.

`python -m checks.review_corpus FOLDER` reviews FOLDER/OWNER/NAME for each line of
`review_repositories.csv`: a checkout of that commit, which you make yourself. It prints, for each
rule, how many findings are true, debatable and false, then the findings without a verdict, and the
judged findings that are no longer reported. `review_corpus.csv` has the verdicts; findings in a
copy of a judged file have the verdict "copy" and are not counted. No rule had been corrected on the
repositories of a run when its findings were judged.

`review_recall.csv` lists mistakes in scripts that were read before the review ran on them, and
whether it found them then.

`python -m checks.rule_index` writes what was measured into the rules' pages and docs/review.md.
"""

from __future__ import annotations

import csv
import os
import sys
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from gradsync.review import review

DATA = Path(__file__).parent
VERDICTS = ("true", "debatable", "false")


class Place(NamedTuple):
    """Where a finding is."""

    repository: str  # OWNER/NAME
    path: str
    line: int
    code: str


def verdicts(file: Path = DATA / "review_corpus.csv") -> dict[Place, str]:
    """Return the verdict of each judged finding."""
    return {
        Place(row["repository"], row["path"], int(row["line"]), row["code"]): row["verdict"]
        for row in _rows(file)
    }


def repositories(file: Path = DATA / "review_repositories.csv") -> list[str]:
    """Return the repositories of the corpus."""
    return [row["repository"] for row in _rows(file)]


def by_rule() -> dict[str, tuple[int, int]]:
    """Return, for each code, the number of true findings and of all judged findings."""
    counts = Counter((place.code, verdict) for place, verdict in verdicts().items())
    return {
        code: (counts[code, "true"], sum(counts[code, verdict] for verdict in VERDICTS))
        for code, _ in counts
    }


def by_run(codes: Container[str]) -> Iterator[tuple[str, int, Mapping[str, int]]]:
    """Yield each run, its number of repositories, and its verdicts of findings of these codes."""
    rows = [row for row in _rows(DATA / "review_corpus.csv") if row["code"] in codes]
    sizes = Counter(row["run"] for row in _rows(DATA / "review_repositories.csv"))
    for run, size in sizes.items():
        yield run, size, Counter(row["verdict"] for row in rows if row["run"] == run)


def recall() -> Iterator[tuple[str, int, int]]:
    """Yield each run of `review_recall.csv`, its mistakes that were found, and all of them."""
    rows = _rows(DATA / "review_recall.csv")
    for run in dict.fromkeys(row["run"] for row in rows):
        found = [row["found"] == "yes" for row in rows if row["run"] == run]
        yield run, sum(found), len(found)


def _rows(file: Path) -> list[dict[str, str]]:
    """Return the rows of a data file."""
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def findings(folder: Path, repository: str) -> Iterator[Place]:
    """Yield the findings in a repository; each of its files is reviewed as a program."""
    root = folder / repository
    for path in sorted(root.rglob("*.py")):
        for finding in review([path]).findings:
            inside = os.path.relpath(finding.path, root)
            yield Place(repository, inside, finding.line, finding.code)


def report(found: Iterable[Place], judged: Mapping[Place, str]) -> str:
    """Return the table of the rules, and what has changed since the verdicts."""
    places = dict.fromkeys(found)
    counts = Counter((place.code, judged.get(place, "new")) for place in places)
    lines = ["rule    true  debatable  false"]
    for code in [*sorted({code for code, _ in counts}), "all"]:
        row = [
            sum(n for (c, v), n in counts.items() if v == verdict and code in (c, "all"))
            for verdict in VERDICTS
        ]
        share = f"{row[0] / sum(row):.0%} true" if sum(row) else "not judged"
        lines.append(f"{code:6} {row[0]:5} {row[1]:10} {row[2]:6}  {share}")
    lines += [f"new: {_shown(place)}" for place in places if place not in judged]
    gone = (place for place in judged if place not in places)
    lines += [f"gone: {_shown(place)} ({judged[place]})" for place in gone]
    return "\n".join(lines)


def _shown(place: Place) -> str:
    return f"{place.repository} {place.path}:{place.line} {place.code}"


def main(folder: Path) -> None:
    """Review all repositories of the corpus that are in the folder."""
    present = [name for name in repositories() if (folder / name).is_dir()]
    print(f"{len(present)} of {len(repositories())} repositories are in {folder}")
    judged = {
        place: verdict for place, verdict in verdicts().items() if place.repository in present
    }
    print(report((p for name in present for p in findings(folder, name)), judged))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
