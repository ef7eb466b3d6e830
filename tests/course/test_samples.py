"""The samples of the texts: their code runs, and the commands in sentences exist.

Other tests run the shell samples (test_shell_samples.py), the lines on the pages of codes
(test_explained_lines.py) and of rules (tests/grader/review), and the notebooks.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from review_samples import WRONG
from small_course import write_course
from terminal import in_a_terminal
from texts import FENCE, ROOT, TEXTS, files_of, samples, text_of

from gradsync.cli.app import complete
from gradsync.course.settings import read_settings
from gradsync.grading.classes.corrections import read_overrides

COMMAND = re.compile(r"(?:^|\$ |&& )gradsync ([a-z][^#\n&|]*)", re.M)
MAKE = re.compile(r"(?:^|`)make ([a-z][a-z-]*)", re.M)
SHELL = {"bash", "console", "text"}
RUN = {  # pages with other code, which a test here or elsewhere runs
    *("another-course.md", "assertions.md", "classes.md", "debugging.md", "engine.md", "review.md"),
    "GUIDELINES.md",
}


def commands(page):
    """Return the commands of a text's shell samples and code spans, without `gradsync`."""
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text_of(page)))
    parts = (*samples(page, "bash", "console"), *spans)
    return [command for part in parts for command in COMMAND.findall(part)]


@pytest.mark.parametrize("page", TEXTS)
def test_the_commands_of_a_text_exist_with_these_options(page):
    for command in commands(page):
        name, *rest = shlex.split(command)
        options = {option for param in complete(name).params for option in (*param.opts, "--help")}
        assert {word.split("=")[0] for word in rest if word.startswith("-")} <= options, command


def test_the_targets_of_make_exist():
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))
    named = {target for page in TEXTS for target in MAKE.findall(text_of(page))}

    assert len(named) > 5
    assert named <= targets


def test_no_page_has_code_that_no_test_runs():
    kinds = {page: {kind for _, kind, _ in FENCE.findall(text_of(page))} for page in TEXTS}

    assert {Path(page).name for page, found in kinds.items() if found - SHELL} <= RUN


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


def in_a_test(sample, number):
    """Return a sample as a part of a test module; statements become a test of their own."""
    if re.search(r"^(@|def (test|spawn)|class )", sample, re.M):
        return sample
    body = textwrap.indent(sample, "    ")
    return f"def test_sample_{number}(ranks):\n{body}"


def ran(*arguments, folder):
    """Run Python, and return what it printed; it must not fail."""
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_the_python_of_the_engine_s_page_runs(tmp_path):
    parts = [
        in_a_test(sample, number)
        for number, sample in enumerate(samples("docs/engine.md", "python"))
        if not sample.startswith(("# ", "run_ranks(function"))
    ]
    use = "def test_spawn():\n    assert list(spawn(pow, (2,), nprocs=3)) == [0, 1, 4]\n"
    (tmp_path / "test_page.py").write_text("\n\n".join([PRELUDE, *parts, use]), encoding="utf-8")
    (tmp_path / "train.py").write_text("print('loss 0.1')\n")

    ran("-m", "pytest", "-q", "test_page.py", folder=tmp_path)

    assert len(parts) > 8


def test_the_guide_s_first_run_prints_its_comment(tmp_path):
    [sample] = samples("phase1/GUIDELINES.md", "python")

    printed = ran("-c", sample, folder=tmp_path)

    assert printed.strip() == sample.rpartition("# ")[2].strip()


@pytest.mark.slow
def test_a_rank_of_the_debugging_page_s_program_stops_in_the_debugger(tmp_path):
    program, debugged = samples("docs/debugging.md", "python")
    shutil.copytree(ROOT / "solutions/phase1", tmp_path / "phase1")
    (tmp_path / "try_it.py").write_text(program)
    changed = program.replace("run_ranks(try_it, world_size=2)", debugged.strip())
    stopped = changed.replace("    print(", "    breakpoint()\n    print(")
    (tmp_path / "stopped.py").write_text(stopped)

    printed = ran("try_it.py", folder=tmp_path)
    screen = in_a_terminal(
        [sys.executable, "stopped.py"], [("(rank 1)", "p rank + 70"), ("71", "c")], tmp_path
    )

    assert printed.count("weight: [[0.5, 0.5]]") == 2
    assert screen.count("weight: [[0.5, 0.5]]") == 2


@pytest.mark.slow
def test_the_test_on_the_page_of_assertions_passes_and_fails(tmp_path):
    [sample] = samples("docs/assertions.md", "python")
    entry = '[[exercise]]\nname = "average_gradients"\nfile = "template_trainer.py"\n'
    write_course(tmp_path, sample, f'{entry}guide = "Means"\ngoal = "a mean"\nhints = []\n')
    mean = "import torch\nimport torch.distributed as dist\n\n\ndef mean(number):\n"
    mean += "    total = torch.tensor(number)\n    dist.all_reduce(total)\n"
    for name, returned in (("right", "total / dist.get_world_size()"), ("wrong", "total")):
        (tmp_path / f"class/{name}/phase1").mkdir(parents=True)
        answer = tmp_path / f"class/{name}/phase1/template_trainer.py"
        answer.write_text(f"{mean}    return {returned}\n")

    grade = ("-m", "gradsync", "grade", "class", "--out", "out", "--unsafe-no-sandbox")
    ran(*grade, folder=tmp_path)
    tests = {
        name: json.loads((tmp_path / f"out/{name}/report.json").read_text())["tests"][0]
        for name in ("right", "wrong")
    }

    assert tests["right"]["status"] == "passed"
    assert "it is not the mean" in tests["wrong"]["message"]


def test_the_settings_and_the_correction_on_the_page_of_classes_are_read(tmp_path):
    title, late = samples("docs/classes.md", "toml")
    [corrections] = samples("docs/classes.md", "csv")
    (tmp_path / "course.toml").write_text(title + late)
    (tmp_path / "overrides.csv").write_text(corrections)

    settings = read_settings(tmp_path)
    overrides, warnings, errors = read_overrides(
        tmp_path / "overrides.csv", {"phase1/average_gradients": ["phase1/average_gradients"]}
    )

    assert (settings.follow_on, settings.points["phase1"]) == ("full", 10)
    assert (settings.late.grace_days, settings.late.per_day) == (3, 0.1)
    assert [override.by for override in overrides["ada"]] == ["Kim"]
    assert not warnings
    assert not errors


def test_other_tools_read_findings_as_the_page_of_the_review_says(tmp_path):
    [task] = samples("docs/review.md", "json")
    hooks = files_of("docs/review.md")[".pre-commit-config.yaml"]
    pattern = json.loads(task)["tasks"][0]["problemMatcher"]["pattern"]
    (tmp_path / "train.py").write_text(WRONG)

    review = [sys.executable, "-m", "gradsync", "review", "train.py"]
    ended = subprocess.run(review, cwd=tmp_path, check=False, capture_output=True, text=True)
    found = [re.match(pattern["regexp"], line) for line in ended.stdout.splitlines()]
    [hook] = yaml.safe_load(hooks)["repos"][0]["hooks"]
    [ours] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())

    assert {match[pattern["code"]] for match in found} == {"DDP005", "DDP013", "DDP021"}
    assert {match[pattern["file"]] for match in found} == {"train.py"}
    assert hook == {key: ours[key] for key in hook}
