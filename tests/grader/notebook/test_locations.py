"""Lines are named by cell, and not by the file that was made of the cells."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_samples import call, collective, report, verdict

from gradsync.notebook.definitions.file import Cell, Module, module_of
from gradsync.notebook.definitions.locations import relocate
from gradsync.records import Diagnosis

FILE = "phase1/template_trainer.py"
BASE = Module.of_text(FILE, "import os\n")
MODULES = {FILE: module_of([Cell("In [5]", "\n\ndef f():\n    return 1")], ["f"], base=BASE)}
# 1 "# coding", 2 "import os", 3 "", 4 "def f():", 5 "    return 1"


def relocated(message: str, **more) -> str:
    [found] = relocate(report(verdict(status="failed", message=message, **more)), MODULES).verdicts
    return found.message


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("at template_trainer.py:5", "at In [5], line 4"),
        ("  template_trainer.py:4 in f: def f():", "  In [5], line 3 in f: def f():"),
        ("it (template_trainer.py, line 4)", "it (In [5], line 3)"),
        (
            "since template_trainer.py:4; template_trainer.py:5",
            "since In [5], line 3; In [5], line 4",
        ),
        ("template_trainer.py:2", "phase1/template_trainer.py:1"),
        ("template_trainer.py, line 6", "In [5], line 4"),
    ],
)
def test_a_line_is_named_as_the_line_of_its_cell(text, wanted):
    assert relocated(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "template_trainer.py:1",
        "template_trainer.py:99",
        "template_trainer.py:0",
        "template_data_loader.py:4",
        "my_template_trainer.py:4",
        "/x/template_trainer.py:4",
        "template_trainer.py:" + "4" * 50,
        "template_trainer.pyc:4",
    ],
)
def test_other_lines_are_not_changed(text):
    assert relocated(text) == text


def test_a_verdict_of_another_phase_stays_as_it_is():
    assert relocated("template_trainer.py:4", exercise="phase2/train") == "template_trainer.py:4"


def test_the_diagnosis_and_the_timeline_name_cells_too():
    where = "template_trainer.py:5"
    known = Diagnosis("sum-not-mean", (0,), f"a sum at {where}", where)
    events = tuple(call(0, 0, 0.1, 0.2, collective(where=where)))
    bare = replace(known, where=None)
    given = report(verdict(diagnosis=known, events=events), verdict(diagnosis=bare))

    first, second = relocate(given, MODULES).verdicts

    assert first.diagnosis.explanation == "a sum at In [5], line 4"
    assert first.diagnosis.where == "In [5], line 4"
    assert first.events[0].collective.where == "In [5], line 4"
    assert second.diagnosis.where is None
