"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found, why it matters, and what to do."""

    name: str
    status: Status  # failed: training can't start; warning: it may be slow, or fail elsewhere
    found: str
    why: str
    remedy: str = ""  # only where the status is not ok
