"""Extract the beginning of a section of the guide, which a notebook quotes."""

from __future__ import annotations

import re

from gradsync.course.catalogue import CourseError

FENCE = "```"
PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")  # to a section of the guide, or to a file


def beginning(guide: str, section: str) -> str:
    """Return the text of a section up to its first subsection, without pictures and local links.

    Raises:
        CourseError: the guide has no such section.
    """
    lines = iter(guide.splitlines())
    if not any(line == f"## {section}" for line in lines):
        raise CourseError(f"The guide has no section {section!r}.")
    found: list[str] = []
    in_code = False
    for line in lines:
        in_code ^= line.startswith(FENCE)
        if line.startswith("#") and not in_code:
            break
        found.append(line)
    text = PICTURE.sub("", "\n".join(found))
    text = LINK.sub(r"\1", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()
