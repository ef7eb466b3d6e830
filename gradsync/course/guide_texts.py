"""Read the guides of a course with their pictures, for pages that quote them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from gradsync.course.catalogue import Course
from gradsync.reports.guide_sections import GuideText

GUIDE = "GUIDELINES.md"
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")


def guide_texts(course: Course) -> tuple[GuideText, ...]:
    """Return the guide of each phase that has one."""
    paths = [course.root / phase / GUIDE for phase in course.phases]
    return tuple(_guide(course, path) for path in paths if path.is_file())


def _guide(course: Course, path: Path) -> GuideText:
    text = path.read_text(encoding="utf-8")
    return GuideText(path.relative_to(course.root).as_posix(), text, dict(_pictures(path, text)))


def _pictures(path: Path, text: str) -> Iterator[tuple[str, bytes]]:
    for name in dict.fromkeys(PICTURE.findall(text)):
        picture = path.parent / name
        if picture.is_file():
            yield name, picture.read_bytes()
