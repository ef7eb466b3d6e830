"""The result of one check of a machine, by `gradsync doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, why it matters, and what to do."""

    name: str
    status: Status  # failed: something needed does not work; warning: it may be slow or fail later
    found: str
    why: str = ""  # the reason why it matters; only with --launch
    remedy: str = ""  # only if the status is not ok


@dataclass(frozen=True, slots=True)
class Subject:
    """What a check is about; its methods return the check's result."""

    name: str
    why: str = ""

    def ok(self, found: str) -> Finding:
        return Finding(self.name, "ok", found, self.why)

    def warning(self, found: str, remedy: str) -> Finding:
        return Finding(self.name, "warning", found, self.why, remedy)

    def failed(self, found: str, remedy: str) -> Finding:
        return Finding(self.name, "failed", found, self.why, remedy)
