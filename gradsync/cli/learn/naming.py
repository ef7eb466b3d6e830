"""Which exercise a name on the command line means: phases may have exercises of the same name."""

from __future__ import annotations

from gradsync.cli.shared import say
from gradsync.course.catalogue import Course, Exercise


def one_named(course: Course, name: str, command: str) -> Exercise:
    """Return the first exercise with this name or id; print how to name the others.

    Raises:
        CourseError: there is none.
    """
    first, *others = course.named(name)
    for other in others:
        say(f"This is {first.id}. For {other.phase}: gradsync {command} {other.id}")
    return first
