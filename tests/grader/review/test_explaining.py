"""A failed test shows the findings of a review in the code of its exercise."""

from dataclasses import replace

import pytest

from gradsync.records import Report, Verdict
from gradsync.reports import progress, terminal
from gradsync.review.explaining import explained

FILE = "phase1/template_trainer.py"
CODE = """\
import torch.distributed as dist


def first(x):
    _begin(x)


def second(x):
    first(x)


def _begin(x):
    dist.all_reduce(x, async_op=True)
"""
LINE = f"{FILE}:13 DDP018 An asynchronous collective is never waited for"


def report_of(folder, text, **statuses):
    path = folder / FILE
    path.parent.mkdir()
    path.write_text(text)
    verdicts = [
        Verdict(f"{FILE}::test_{name}", f"phase1/{name}", FILE, 0, 1, status, f"{name} is wrong.")
        for name, status in statuses.items()
    ]
    return Report("your work", 1, 0.1, tuple(verdicts))


def test_a_failed_test_has_the_findings_of_its_exercise_and_its_helpers(tmp_path):
    report = report_of(tmp_path, CODE, first="failed", second="failed")

    seen = explained(report, tmp_path)

    assert [verdict.review for verdict in seen.verdicts] == [(LINE,), ()]


@pytest.mark.parametrize("status", ["passed", "unfinished", "missing"])
def test_a_test_that_did_not_fail_has_no_findings(tmp_path, status):
    report = report_of(tmp_path, CODE, first=status, second="failed")

    assert explained(report, tmp_path) == report


@pytest.mark.parametrize("text", ["def first(:\n", "def first(x):\n    return x\n"])
def test_a_file_without_findings_changes_nothing(tmp_path, text):
    report = report_of(tmp_path, text, first="failed")

    assert explained(report, tmp_path) == report


@pytest.mark.parametrize("render", [terminal.render, progress.render])
def test_the_terminal_shows_the_line_under_the_message(tmp_path, render):
    report = report_of(tmp_path, CODE, first="failed")
    verdict = replace(report.verdicts[0], review=(LINE,))

    shown = render(replace(report, verdicts=(verdict,)), width=200)

    assert shown.index("first is wrong.") < shown.index(f"review: {LINE}")
