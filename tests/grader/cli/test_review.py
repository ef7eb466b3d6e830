"""`gradsync review`: its output, its exit status, its fixes, and other tools that use the rules."""

import re
import subprocess
import sys

import pytest
from review_samples import WRONG, run

from gradsync.review import fixing, review_text
from gradsync.review.catalogue import RULES

FIXED = (
    WRONG.replace(
        'os.environ["MASTER_PORT"] = "29500"', 'os.environ.setdefault("MASTER_PORT", "29500")'
    )
    .replace("    for (x,)", "    sampler.set_epoch(epoch)\n    for (x,)")
    .replace(
        '"model.pt",  # so does this one\n',
        '"model.pt",  # so does this one\n    map_location="cpu")',
    )
)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(WRONG)
    return path


def test_findings_are_lines_and_the_checklist_shows_what_is_followed(script):
    ended = run(script)

    assert ended.returncode == 1
    found = rf"^{re.escape(str(script))}:(\d+):\d+ (DDP\d+) \S"
    assert re.findall(found, ended.stdout, re.M) == [
        ("9", "DDP021"),
        ("13", "DDP005"),
        ("16", "DDP013"),
    ]
    assert ended.stdout.count("\n") == 3
    printed = " ".join(ended.stderr.split())
    assert "✗ each epoch has a new order DDP005" in printed
    followed, unchecked = printed.split("✓ followed: ")[1].split("- not checked: ")
    assert "each rank has its own samples; " in followed
    assert "gradients are averaged; " in followed
    assert "metrics count each sample once" in unchecked


def test_the_checklist_claims_nothing_that_was_not_seen(script):
    script.write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")

    assert "followed" not in run(script).stderr


def test_a_file_that_cannot_be_read_does_not_hide_the_findings_of_the_others(script):
    broken = script.with_name("broken.py")
    broken.write_text("print 'Python 2'\n")

    named, in_a_folder = run(broken, script), run(script.parent)

    assert (named.returncode, in_a_folder.returncode) == (2, 1)
    for ended in (named, in_a_folder):
        assert len(ended.stdout.splitlines()) == 3
        assert "not reviewed: " in ended.stderr
        assert "broken.py:1: Python can't read this line" in ended.stderr


def test_statistics_count_the_findings_of_each_rule(script):
    script.with_name("second.py").write_text(WRONG.replace("for epoch in range(3)", "if True"))

    lines = run("--statistics", script.parent).stdout.splitlines()

    assert [line.split()[:2] for line in lines[:-1]] == [
        ["2", "DDP021"],
        ["2", "DDP013"],
        ["1", "DDP005"],
    ]
    assert lines[-1] == "5 findings in 2 files; 2 files reviewed"


def test_a_script_without_mistakes_ends_with_zero(tmp_path):
    path = tmp_path / "plain.py"
    path.write_text("print(1)\n")

    ended = run(path)

    assert (ended.returncode, ended.stdout) == (0, "")
    assert "No distributed training was found" in ended.stderr


def test_select_shows_only_these_rules(script):
    assert [
        line.split()[1] for line in run(script, "--select", "DDP005,ddp021").stdout.splitlines()
    ] == [
        "DDP021",
        "DDP005",
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "Name the scripts to review"),
        (["--explain", "DDP999"], "there is no such rule. `gradsync review --explain all` lists"),
        (["nowhere.py"], "nowhere.py does not exist"),
        (["{script}", "--select", "E501"], "no such rule"),
        (["{script}", "--select", ","], "--select needs codes"),
        (["{folder}/empty"], "has no Python files"),
        (["{folder}/broken.py"], r"broken.py:1: Python can't read this line"),
    ],
)
def test_unusable_arguments_are_one_clear_error(arguments, text, script):
    (script.parent / "empty").mkdir()
    (script.parent / "broken.py").write_text("def f(:\n")

    ended = run(*(a.format(script=script, folder=script.parent) for a in arguments))

    assert ended.returncode == 2
    assert re.search(text, " ".join(ended.stderr.split()))
    assert ended.stdout == ""


def test_a_folder_stands_for_its_python_files_and_has_a_summary_by_rule(script):
    script.with_name("second.py").write_text(WRONG)

    folder, files = run(script.parent), run(script.with_name("second.py"), script)

    assert sorted(folder.stdout.splitlines()) == sorted(files.stdout.splitlines())
    assert "    2 DDP005 `set_epoch` is never called" in folder.stderr


def test_safe_fixes_change_the_file_and_are_shown(script):
    ended = run("--fix", script)

    assert ended.returncode == 0, ended.stdout
    assert "+    sampler.set_epoch(epoch)" in ended.stderr
    assert "# a comment stays" in script.read_text()
    assert review_text(script.read_text(), "train.py").findings == ()


def test_findings_that_are_not_fixed_are_counted(script):
    script.write_text(WRONG.replace("dist.destroy_process_group()\n", ""))

    ended = run("--fix", script)

    assert ended.returncode == 1
    assert [line.split()[1] for line in ended.stdout.splitlines()] == ["DDP019"]
    assert "1 finding must be fixed by hand" in ended.stderr


def test_a_fixed_file_stays_as_it_is(script):
    fixing.fix(script, RULES)
    before = script.read_bytes()

    assert fixing.fix(script, RULES) == ""
    assert script.read_bytes() == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("DataLoader(data, sampler=s, shuffle=True)", "DataLoader(data, sampler=s)"),
        ("DataLoader(data, shuffle=True, sampler=s)", "DataLoader(data, sampler=s)"),
        (
            "DataLoader(\n    data,\n    sampler=s,\n    shuffle=True,\n)",
            "DataLoader(\n    data,\n    sampler=s,\n)",
        ),
    ],
)
def test_the_comma_of_a_removed_argument_is_removed(before, after, tmp_path):
    start = "from torch.utils.data import DataLoader, DistributedSampler\n"
    start += "s = DistributedSampler(data)\nloader = "
    path = tmp_path / "script.py"
    path.write_text(start + before + "\n")

    fixing.fix(path, RULES)

    assert path.read_text() == start + after + "\n"


def test_an_accepted_finding_is_not_fixed(script):
    script.write_text(WRONG.replace("(dataset)\nloader", "(dataset)  # gradsync: ignore\nloader"))

    fixing.fix(script, RULES)

    assert "set_epoch" not in script.read_text()


@pytest.mark.parametrize(
    ("code", "text"),
    [("ddp005", "# DDP005: `set_epoch` is never called"), ("all", RULES[-1].title)],
)
def test_explain_shows_the_page_of_a_rule_or_all_titles(code, text):
    ended = run("--explain", code)

    assert ended.returncode == 0
    assert text in ended.stdout


def test_a_review_does_not_import_torch(script):
    code = (
        "import sys, pathlib; from gradsync.review import review; "
        f"review([pathlib.Path({str(script)!r})]); sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
