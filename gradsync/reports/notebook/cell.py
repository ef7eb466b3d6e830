"""Render a report as a fragment of HTML for a notebook.

A page may have several fragments, in a light or a dark theme: the styles apply only within
`.gs-cell`, and the colours depend on the text colour of the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from gradsync.records import Report
from gradsync.reports import summary
from gradsync.reports.templating import template


@dataclass(frozen=True, slots=True)
class GuideLink:
    """A link from a notebook to a section of a guide's file, which Jupyter opens in a tab."""

    href: str
    heading: str


@dataclass(frozen=True, slots=True)
class _GuideLinks:
    root: str | None  # relative path from the notebook to the course; None makes no links

    def get(self, section: tuple[str, str]) -> GuideLink | None:
        if self.root is None:
            return None
        path, heading = section
        # Jupyter's anchors keep the case of a heading, unlike GitHub's.
        anchor = quote(heading.replace(" ", "-"))
        return GuideLink(f"{quote(f'{self.root}/{path}')}#{anchor}", heading)


def render(report: Report, root: str | None = None) -> str:
    """Return the report as a fragment of HTML.

    Args:
        report: the results of a check or a grade.
        root: the relative path from the notebook's folder to the course, for links to the guide;
            None names the sections without links.
    """
    return _FRAGMENT.render(
        report=report,
        exercises=summary.exercises(report),
        problems=summary.problems(report),
        unfinished=summary.unfinished(report),
        passed=[verdict for verdict in report.verdicts if verdict.status == "passed"],
        read=_GuideLinks(root),
        repeat=summary.repeat_command(report),
    )


_FRAGMENT = template("cell.html.j2")
