"""Show changes after the tests in report.html: overrides, and points lost by lateness.

The page is not rendered again, because its timelines are stored nowhere else. It has a place for
this part.
"""

from __future__ import annotations

from gradsync.class_records import Result
from gradsync.reports.templating import template

BEGIN, END = "<!-- corrections -->", "<!-- end of corrections -->"


def insert(page: str, result: Result) -> str:
    """Return a report.html with the corrections of its result instead of earlier ones.

    A page of an earlier version, which has no place for them, is returned unchanged.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)  # learners' texts are escaped: they contain no comment
    if not end:
        return page
    return f"{before}{begin}{_render(result)}{end}{after}"


def _render(result: Result) -> str:
    if result.score is None or not (result.overrides or result.days_late):
        return ""
    return f"\n{_PART.render(result=result)}\n"


_PART = template("corrections.html.j2")
