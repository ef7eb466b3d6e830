"""Read course.toml, the settings of a course: its title, and the rules for lateness."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gradsync.course.catalogue import CourseError, read_toml

SETTINGS_FILE = "course.toml"
LATE_KEYS = ("due", "grace_days", "per_day")


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
        title = content.get("course", {}).get("title", root.resolve().name)
        return Settings(str(title), _late_rules(content.get("late", {})))
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
