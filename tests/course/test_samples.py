"""The samples of the texts: their Python runs, and their commands exist with these options."""

import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gradsync.cli.app import COMMANDS, complete

ROOT = Path(__file__).parents[2]
TEXTS = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "phase*/GUIDELINES.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
COMMAND = re.compile(r"(?:^|\$ |&& )gradsync ([a-z][^#\n&|]*)", re.M)
MAKE = re.compile(r"(?:^|`)make ([a-z][a-z-]*)", re.M)


def commands(path):
    """Return the commands of a text's shell samples and code spans, without `gradsync`."""
    text = path.read_text(encoding="utf-8")
    shell = [body for kind, body in FENCE.findall(text) if kind in ("bash", "console")]
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    return [command for part in (*shell, *spans) for command in COMMAND.findall(part)]


PRELUDE = """
import pytest
import torch
import torch.distributed as dist
from gradsync import RankFailure, run_ranks


def skip(rank):
    total = torch.ones(4)
    dist.all_reduce(total)
    if rank != 2:
        dist.all_reduce(total)


def step(rank):
    pair, _ = dist.new_subgroups(2)
    dist.all_gather_into_tensor(torch.empty(1024), torch.ones(512), group=pair)
    dist.reduce_scatter_tensor(torch.empty(512), torch.ones(1024), group=pair)


def train(rank, world_size, steps=3, folder=None):
    try:
        for _ in range(steps):
            dist.all_reduce(torch.ones(2))
    except RuntimeError:  # a rank was lost
        (folder / "checkpoint.pt").touch()
"""


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_commands_of_a_text_exist_with_these_options(path):
    for command in commands(path):
        name, *rest = shlex.split(command)
        options = {option for param in complete(name).params for option in (*param.opts, "--help")}
        assert {word.split("=")[0] for word in rest if word.startswith("-")} <= options, command


def test_most_commands_are_in_a_text():
    named = {command.split()[0] for path in TEXTS for command in commands(path)}

    assert len(named) > 0.9 * len(COMMANDS)


def test_the_targets_of_make_exist():
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))
    named = {target for path in TEXTS for target in MAKE.findall(path.read_text(encoding="utf-8"))}

    assert len(named) > 5
    assert named <= targets


def in_a_test(sample, number):
    """Return a sample as a part of a test module; statements become a test of their own."""
    if re.search(r"^(@|def test|class )", sample, re.M):
        return sample
    body = textwrap.indent(sample, "    ")
    return f"def test_sample_{number}(ranks):\n{body}"


@pytest.mark.slow
def test_the_python_of_the_engine_s_page_runs(tmp_path):
    page = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")
    samples = [body for kind, body in FENCE.findall(page) if kind == "python"]
    parts = [
        in_a_test(sample, number)
        for number, sample in enumerate(samples)
        if not sample.startswith(("# ", "run_ranks(function"))
    ]
    (tmp_path / "test_page.py").write_text("\n\n".join([PRELUDE, *parts]), encoding="utf-8")
    (tmp_path / "train.py").write_text("print('loss 0.1')\n")

    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_page.py"],
        cwd=tmp_path, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stdout
    assert len(parts) > 8
