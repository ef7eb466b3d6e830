"""Read course.toml, the settings of a course: its title, and the rules for lateness."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from gradsync.course.catalogue import CourseError, read_toml

SETTINGS_FILE = "course.toml"
LATE_KEYS = ("due", "grace_days", "per_day")


# What happens to an exercise that fails because it calls a wrong one: "graded" as it is, or "full",
# graded again with a right function in the place of the wrong one.
FollowOn = Literal["graded", "full"]


@dataclass(frozen=True, slots=True)
class LateRules:
    """The due time of submissions, and the points that each day after it costs."""

    due: datetime | None = None  # with a time zone; None: nothing is late
    grace_days: float = 0.0  # after the due time, without loss
    per_day: float = 0.0  # share of the possible points that each further day costs, 0 to 1


@dataclass(frozen=True, slots=True)
class Settings:
    """The content of course.toml; a course without the file has the defaults."""

    title: str
    late: LateRules = LateRules()
    points: Mapping[str, float] = field(default_factory=dict)  # of a phase, if they are not 100
    rubric: Mapping[str, float] = field(default_factory=dict)  # criteria that staff grade by hand
    follow_on: FollowOn = "graded"


def read_settings(root: Path) -> Settings:
    """Return the settings of the course at `root`; the default title is the folder's name.

    Raises:
        CourseError: the file can't be read, or a value is not usable.
    """
    path = root / SETTINGS_FILE
    try:
        content = read_toml(path)
    except FileNotFoundError:
        return Settings(root.resolve().name)
    except (OSError, ValueError) as problem:
        raise CourseError(f"{path} can't be read: {problem}.") from None
    try:
        course = content.get("course", {})
        follow_on = course.get("follow_on", "graded")
        if follow_on not in ("graded", "full"):
            raise ValueError(f'follow_on in [course] must be "graded" or "full", not {follow_on!r}')
        return Settings(
            title=str(course.get("title", root.resolve().name)),
            late=_late_rules(content.get("late", {})),
            points=_phase_points(content),
            rubric=_positive("[rubric]", content.get("rubric", {})),
            follow_on=follow_on,
        )
    except (AttributeError, TypeError, ValueError) as problem:
        raise CourseError(f"{path}: {problem}.") from None


def local(moment: datetime) -> datetime:
    """Return a moment with a time zone; without one, it is in this machine's time zone."""
    return moment if moment.tzinfo else moment.astimezone()


def _late_rules(table: dict[str, Any]) -> LateRules:
    if unknown := sorted(set(table) - set(LATE_KEYS)):
        raise ValueError(f"[late] has no key {unknown[0]!r}; its keys are {', '.join(LATE_KEYS)}")
    rules = LateRules(
        due=_moment(table.get("due")),
        grace_days=_number("grace_days", table.get("grace_days", 0)),
        per_day=_share(table.get("per_day", 0)),
    )
    if rules.grace_days < 0:
        raise ValueError("grace_days in [late] must not be negative")
    return rules


def _phase_points(content: dict[str, Any]) -> dict[str, float]:
    """Return the points of each phase that has a table such as `[phase1]` with `points`."""
    tables = {name: table for name, table in content.items() if name.startswith("phase")}
    for name, table in tables.items():
        if unknown := sorted(set(table) - {"points"}):
            raise ValueError(f"[{name}] has no key {unknown[0]!r}; its key is points")
    given = {name: table["points"] for name, table in tables.items() if "points" in table}
    return _positive("points", given)


def _positive(what: str, table: dict[str, Any]) -> dict[str, float]:
    for name, value in table.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
            raise ValueError(f"{what} of {name} must be a number above 0, not {value!r}")
    return {name: float(value) for name, value in table.items()}


def _moment(value: Any) -> datetime | None:
    if isinstance(value, str):
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if value is None or isinstance(value, datetime):
        return value and local(value)
    raise ValueError(
        "due in [late] must be a date with a time, such as 2026-10-30T23:59:00+01:00, not "
        f"{value!r}"
    )


def _share(value: Any) -> float:
    """Return 0.1 for 0.1 or "10%"."""
    percent = isinstance(value, str) and value.strip().endswith("%")
    number = float(value.strip()[:-1]) / 100 if percent else _number("per_day", value)
    if not 0 <= number <= 1:
        raise ValueError(f'per_day in [late] must be "0%" to "100%", not {value!r}')
    return number


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} in [late] must be a number, not {value!r}")
    return float(value)
