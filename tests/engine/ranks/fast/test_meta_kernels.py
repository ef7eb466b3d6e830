"""The grader's process imports torch without kernels for meta tensors, unless it needs them."""

import os
import subprocess
import sys

import pytest

from gradsync.ranks.fast import SWITCH

PROGRAM = """
import sys
from pathlib import Path

from gradsync.ranks.fast import meta_kernels

meta_kernels.defer()
import torch
import suite_under_test

weight = torch.ones(2, 3, requires_grad=True)
(torch.nn.functional.conv1d(torch.ones(1, 2, 5), weight[None])).sum().backward()
before = "aten" in vars(sys.modules[meta_kernels.NAME])
meta_kernels.complete(Path(suite_under_test.__file__).parent)
print(before, "aten" in vars(sys.modules[meta_kernels.NAME]))
"""
CONVOLUTION = """
import torch

def shape():
    return torch.nn.Conv2d(3, 4, 3, device="meta")(torch.empty(1, 3, 8, 8, device="meta")).shape
"""


def run(folder, suite, program=PROGRAM, **environ):
    (folder / "suite_under_test.py").write_text(suite)
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(folder), **environ},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()


@pytest.mark.parametrize(
    ("suite", "complete"),
    [
        pytest.param("import torch\nmetadata = 'metal'", "False", marks=pytest.mark.slow),
        pytest.param(CONVOLUTION, "True", marks=pytest.mark.slow),
    ],
)
def test_they_run_if_the_suite_mentions_what_needs_them(tmp_path, suite, complete):
    assert run(tmp_path, suite) == ["False", complete]


def test_once_complete_they_work_as_usual(tmp_path):
    program = f"{PROGRAM}\nprint(*suite_under_test.shape())"

    assert run(tmp_path, CONVOLUTION, program) == ["False", "True", "1", "4", "6", "6"]


@pytest.mark.slow
def test_they_run_at_once_if_the_trick_is_off(tmp_path):
    assert run(tmp_path, "", **{SWITCH: "meta_kernels"}) == ["True", "True"]
