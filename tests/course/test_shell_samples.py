"""The shell samples of texts and of `--help` run, each page's in a folder as the page describes it.

A block begins in this folder, which has the files that the page shows and those that its commands
read. Any command runs, also a new one, except those that NOT_RUN lists with their reason. A command
that takes long and whose output is not shown runs on the first page that has it.
"""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from class_downloads import BOTH, ONE, TWO, inside, two_phases, zipped
from learners_copy import write_whole_course
from quick_part import drawn
from small_course import RIGHT
from small_mnist import mnist_files, write
from texts import FENCE, ROOT, TEXTS, files_of, text_of

from gradsync.cli.app import COMMANDS, TEACHING, complete

NOT_RUN = {
    r"(python3 -m venv|pip install|git clone)\b": "needs a network; checks/entrances.sh installs "
    "the wheel, and test_wheel.py builds it",
    r"make \w+": "is for a clone; continuous integration runs these targets",
    r"jupyter lab": "stays open; notebooks/test_jupyterlab.py opens it",
    r"docker ": "needs Docker; grader/exporting/test_containers.py and cli/test_in_a_container.py "
    "grade with a container's limits",
    r"(sbatch|tail) ": "needs Slurm; `make test-cluster` runs these scripts",
    r"mpirun ": "needs GPUs and MPI",
    r"(torchrun --nnodes|gradsync train --nodes) 2": "needs two machines; tests/cluster has "
    "network namespaces instead",
    r"dask |gradsync grade .* --cluster": "stays open; grading/processes/test_cluster.py starts it",
    r"gradsync check --watch": "stays open; grader/cli/test_check.py runs it",
    r"gradsync update": "needs a teacher's copy; tests/grader/course/release/test_newer.py",
    r"gradsync export \S+ --to moodle-feedback": "needs a class from Moodle, and this one is from "
    "Canvas; tests/grader/exporting/test_feedback.py",
    r"gradsync nbgrade notebooks/": "runs in the course's folder, as docs/nbgrader.md shows it",
}
SKIPPED = re.compile("|".join(NOT_RUN))
LONG = re.compile(r"(gradsync (?:train|check|trace|scale)\b.*?)(?:\s+#.*)?")
SOLVED = {  # the phases that are solved in a copy for self-study
    "docs/launching.md": 1, "docs/learning.md": 1, "docs/scaling.md": 1, "help to learn": 3,
    **{f"phase{number}/GUIDELINES.md": number for number in (1, 2, 3)},
}  # fmt: skip
CLASS = {"docs/classes.md", "docs/grading.md", "docs/teaching.md", "help to teach"}
QUICK = {"docs/grading.md", "docs/review.md", "docs/teaching.md"}
SHEETS = {
    "roster.csv": """id,name,email
9100,Ada Lovelace,ada@example.org
9101,Bob Bob,bob@example.org
""",
    "canvas.csv": """Student,ID,SIS User ID,SIS Login ID,Section,Doubling (12)
    Points Possible,,,,,200.0
"Lovelace, Ada",9100,,ada@example.org,,
""",
    "worksheet.csv": """Identifier,Full name,Email address,Grade,Last modified (grade)
Participant 1,Ada Lovelace,ada@example.org,,-
""",
}
START = r"""
set -euo pipefail
gradsync() {  # bubblewrap need not be installed here, and a review that finds something is fine
  command gradsync "$@" $([ "$1" != grade ] || echo --unsafe-no-sandbox) || [ "$1 $?" = "review 1" ]
}
"""


def blocks(page):
    """Return the shell samples of a page: their commands, one in each line, and their output."""
    if page.startswith("help"):
        return [("\n".join(examples(teaching=page.endswith("teach"))), [])]
    found = []
    for _, kind, body in FENCE.findall(text_of(page)):
        lines = textwrap.dedent(body).replace("\\\n", " ").splitlines()
        if kind == "bash":
            found.append(("\n".join(lines), []))
        elif kind == "console":
            commands = [line[2:] for line in lines if line.startswith("$ ")]
            found.append(("\n".join(commands), [line for line in lines if line[:2] != "$ "]))
        elif kind == "yaml":
            found.append(("\n".join(re.findall(r"^ *- (?:run: )?(gradsync .*)", body, re.M)), []))
    return found


def examples(*, teaching):
    """Return the examples of the commands' help texts, which are pages of the documentation too."""
    for name, place in COMMANDS.items():
        if (place.panel == TEACHING) == teaching:
            for example in re.findall(r"\[dim\](gradsync .*?)\[/\]", complete(name).help):
                of_two = example.replace("3/40", "1/2")  # of a class of two learners
                yield of_two.replace("EXERCISE", "PaddedDistributedSampler")


PAGES = [*(page for page in TEXTS if any(blocks(page))), "help to learn", "help to teach"]


def long_ones(script):
    """Return the commands of a script that take long, without comments."""
    found = map(LONG.fullmatch, script.splitlines())
    return {each[1] for each in found if each}


def test_each_reason_is_needed():
    lines = [line for page in PAGES for script, _ in blocks(page) for line in script.splitlines()]

    assert [each for each in NOT_RUN if not any(re.match(each, line) for line in lines)] == []


@pytest.mark.parametrize(
    "page", drawn(dict.fromkeys(PAGES, ("a page",)), late=set(PAGES) - QUICK, half=True)
)
def test_the_commands_of_a_page_run_and_print_what_it_shows(page, tmp_path, request):
    if page == "docs/nbgrader.md":
        request.getfixturevalue("needs_sandbox")
    folder = tmp_path / "course"
    folder.mkdir()
    prepare(page, folder)
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GRADSYNC_DATA": str(write(tmp_path / "digits", mnist_files(train=2000, test=300))),
        "SLURM_ARRAY_TASK_ID": "1",
    }

    earlier = PAGES[: PAGES.index(page)]
    known = {line for each in earlier for script, _ in blocks(each) for line in long_ones(script)}
    for script, shown in blocks(page):
        again = set() if shown else known
        lines = [line for line in script.splitlines() if not SKIPPED.match(line)]
        commands = [line for line in lines if not long_ones(line) & again]
        ended = subprocess.run(
            ["bash", "-c", "\n".join([START, *commands])],
            cwd=folder, env=environ, check=False, timeout=900, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

        assert ended.returncode == 0, f"{script}\n{ended.stdout}"
        printed = comparable(ended.stdout)
        missing = [line for line in shown if comparable(line.partition("...")[0]) not in printed]
        assert missing == [], ended.stdout


def comparable(text):
    """Leave out what differs each time: the width of a terminal, times, losses and ports."""
    return " ".join(re.sub(r"\d+\.\d+|\b\d{4,}\b", "N", text).split())


def prepare(page, folder):
    """Write the files that the commands of a page read."""
    if page in SOLVED:
        prepare_a_learner(folder, SOLVED[page])
    elif page in CLASS:
        prepare_a_class(folder)
    elif page == "README.md":
        shutil.copytree(ROOT / "phase1", folder / "class/ada/phase1")
        put(folder, {"test_mine.py": "def test_it(ranks):\n    ranks(print, world_size=4)\n"})
    elif page == "docs/nbgrader.md":
        nbgrader = folder / "notebooks/nbgrader"
        shutil.copytree(ROOT / "notebooks/nbgrader", nbgrader)
        shutil.copytree(nbgrader / "source/phase1", nbgrader / "submitted/ada/phase1")
    put(folder, {"train.py": files_of("docs/review.md")["train.py"]})
    put(folder, files_of(page) if page in TEXTS else {})


def put(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def prepare_a_learner(folder, phases):
    """Write a copy for self-study with some solved phases, and files that `gradsync` reads."""
    start = [sys.executable, "-m", "gradsync", "start", str(folder)]
    subprocess.run(start, check=True, capture_output=True)
    for number in range(1, phases + 1):
        shutil.copytree(
            folder / f"solutions/phase{number}", folder / f"phase{number}", dirs_exist_ok=True
        )
    shutil.make_archive(str(folder / "ada"), "zip", folder / "solutions")
    put(folder, {f"{ranks}.txt": all_reduce_perf(ranks) for ranks in (16, 32)})


def all_reduce_perf(ranks):
    """Return the output of nccl-tests on nodes with 8 GPUs each."""
    used = (f"#  Rank {rank} Group 0 Pid 1 on node{rank // 8} device" for rank in range(ranks))
    sizes = (4**power for power in range(5, 14))
    rows = (f"{size} {size // 4} float sum -1 {30 + size / 1e4} 0 0 0 1 0 0 0" for size in sizes)
    return "\n".join([*used, *rows, ""])


def prepare_a_class(folder):
    """Write a small course, and what two learners handed in, as files and as downloads."""
    write_whole_course(folder)
    two_phases(folder)
    shutil.copytree(folder / "solutions/phase1", folder / "solutions/phase2")
    for path in ("tests/visible/phase1/test_doubling.py", "phase1/codes.toml"):
        text = (folder / path).read_text(encoding="utf-8").replace("phase1", "phase2")
        put(folder, {path.replace("phase1", "phase2"): text})
    put(folder, {**inside("class/ada"), **inside("class/bob"), **SHEETS})
    (folder / "ada.zip").write_bytes(zipped(BOTH))
    (folder / "week3").mkdir()
    for name, files in {"week3": {ONE: RIGHT}, "week6": {TWO: RIGHT}, "submissions": BOTH}.items():
        uploads = ("lovelaceada_9100_1_x.zip", "bobbob_9101_2_x.zip")
        (folder / f"{name}.zip").write_bytes(zipped(dict.fromkeys(uploads, zipped(files))))
    shutil.unpack_archive(folder / "submissions.zip", folder / "submissions")
