"""The systems for which there is an export."""

from __future__ import annotations

from typing import Literal

Format = Literal[
    "gradescope",
    "classroom50",
    "actions",
    "prairielearn",
    "canvas",
    "moodle",
    "junit",
    "similarity",
]
