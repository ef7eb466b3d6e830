"""Exports of a folder of grades, and files for grading this course in other systems."""

from typing import Literal

# The systems for which there is an export.
Format = Literal[
    "gradescope",
    "classroom50",
    "actions",
    "prairielearn",
    "canvas",
    "moodle",
    "junit",
    "similarity",
    "canvas-feedback",
    "moodle-feedback",
    "mail",
]
