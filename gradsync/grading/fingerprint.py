"""Digests of the inputs of a report. A later run compares them to see if it is still valid."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gradsync.course.catalogue import EXERCISES_FILE, Audience, Course
from gradsync.course.settings import read_settings
from gradsync.ranks.protocol.user_files import PACKAGE
from gradsync.submission import Submission


def course_digests(course: Course, phases: Sequence[str]) -> tuple[str, ...]:
    """Return the digest of everything that grades each of these phases with its hidden suite.

    Raises:
        CourseError: a phase has no such suite.
    """
    return tuple(course_digest(course, phase) for phase in phases)


def course_digest(course: Course, phase: str, audience: Audience = "hidden") -> str:
    """Return the digest of everything that grades a phase: suite, exercises and software.

    The phase's maximum in course.toml is not part of it, because stored grades can be scaled.

    Raises:
        CourseError: the phase has no such suite.
    """
    suite = _files(course.suite(audience, phase))
    exercises = _sha256(course.root / phase / EXERCISES_FILE)
    runs = [platform.python_version(), version("torch"), _files(PACKAGE)]
    settings = read_settings(course.root)
    ours = _files(course.root / "solutions" / phase) if settings.follow_on == "full" else {}
    support = _files(course.support)
    return _digest([phase, settings.follow_on, ours, suite, exercises, support, runs])


def submission_digest(submission: Submission) -> str:
    """Return the digest of a submission: its name, files and notes."""
    files = {path: hashlib.sha256(data).hexdigest() for path, data in submission.files.items()}
    return _digest([submission.name, files, submission.notes])


def _files(folder: Path) -> dict[str, str]:
    """Return the digest of each file in a folder, except Python's caches."""
    paths = (p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in paths}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
