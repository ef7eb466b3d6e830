"""`gradsync review`: its output, its exit status, its fixes, and other tools that use the rules."""

import json
import re
import subprocess
import sys

import jsonschema
import pytest

from gradsync.review import fixing, review_text, sarif
from gradsync.review.catalogue import RULES

WRONG = """\
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

os.environ["MASTER_PORT"] = "29500"
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dataset = TensorDataset(torch.randn(10, 2))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, sampler=sampler)  # a comment stays
model = nn.Linear(2, 1).cuda()
model.load_state_dict(torch.load(
    "model.pt",  # so does this one
))
model = DDP(model)
for epoch in range(3):
    for (x,) in loader:
        model(x).sum().backward()
dist.destroy_process_group()
"""
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


def run(*arguments):
    command = [sys.executable, "-m", "gradsync", "review", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_each_finding_is_a_line_with_place_code_and_text(script):
    ended = run(script)

    assert ended.returncode == 1
    lines = ended.stdout.splitlines()
    assert [
        re.match(rf"{re.escape(str(script))}:(\d+):\d+ (DDP\d+) \S", line).groups()
        for line in lines
    ] == [
        ("9", "DDP021"),
        ("13", "DDP005"),
        ("16", "DDP013"),
    ]


def test_the_checklist_says_what_was_checked_found_and_absent(script):
    printed = run(script).stderr

    assert re.search("✓ nothing found: .*each rank has its own samples", printed, re.DOTALL)
    assert "✗ each epoch has a new order  DDP005" in printed
    assert re.search("not applicable: .*all ranks begin with the same model", printed)


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


def test_a_folder_stands_for_its_python_files(script):
    assert run(script.parent).stdout == run(script).stdout


def test_safe_fixes_change_the_file_and_are_shown(script):
    ended = run("--fix", script)

    assert ended.returncode == 0, ended.stdout
    assert "+    sampler.set_epoch(epoch)" in ended.stderr
    assert "# a comment stays" in script.read_text()
    assert review_text(script.read_text(), "train.py").findings == ()


def test_a_fixed_file_stays_as_it_is(script):
    fixing.fix(script, RULES)
    before = script.read_bytes()

    assert fixing.fix(script, RULES) == ""
    assert script.read_bytes() == before


def test_an_accepted_finding_is_not_fixed(script):
    script.write_text(WRONG.replace("(dataset)\nloader", "(dataset)  # gradsync: ignore\nloader"))

    fixing.fix(script, RULES)

    assert "set_epoch" not in script.read_text()


def _only(required, **properties):
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


TEXT = {"type": "string"}
MESSAGE = _only(["text"], text=TEXT)
NUMBER = {"type": "integer", "minimum": 1}
LEVEL = {"enum": ["none", "note", "warning", "error"]}
# The parts of the official schema of SARIF 2.1.0 that these logs have.
SCHEMA = _only(
    ["version", "runs"],
    version={"enum": ["2.1.0"]},
    runs={
        "type": "array",
        "items": _only(
            ["tool"],
            tool=_only(
                ["driver"],
                driver=_only(
                    ["name"],
                    name=TEXT,
                    version=TEXT,
                    rules={
                        "type": "array",
                        "uniqueItems": True,
                        "items": _only(
                            ["id"],
                            id=TEXT,
                            shortDescription=MESSAGE,
                            help=MESSAGE,
                            defaultConfiguration=_only([], level=LEVEL),
                        ),
                    },
                ),
            ),
            columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
            results={
                "type": "array",
                "items": _only(
                    ["message"],
                    ruleId=TEXT,
                    level=LEVEL,
                    message=MESSAGE,
                    locations={
                        "type": "array",
                        "items": _only(
                            [],
                            physicalLocation=_only(
                                [],
                                artifactLocation=_only(
                                    [], uri={"type": "string", "format": "uri-reference"}
                                ),
                                region=_only(
                                    [],
                                    startLine=NUMBER,
                                    startColumn=NUMBER,
                                    endLine=NUMBER,
                                    endColumn=NUMBER,
                                ),
                            ),
                        ),
                    },
                ),
            },
        ),
    },
)
SCHEMA["properties"]["$schema"] = {"type": "string", "format": "uri"}


def test_sarif_has_the_parts_of_the_official_schema(script):
    ended = run("--format", "sarif", script)

    log = json.loads(ended.stdout)
    jsonschema.validate(log, SCHEMA)
    assert ended.returncode == 1
    assert [result["ruleId"] for result in log["runs"][0]["results"]] == [
        "DDP021",
        "DDP005",
        "DDP013",
    ]
    assert len(log["runs"][0]["tool"]["driver"]["rules"]) == len(RULES)


def test_sarif_paths_are_references_that_other_systems_read():
    log = json.loads(sarif.render(review_text(WRONG, "a folder/train.py"), RULES, "1"))

    place = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "a%20folder/train.py"
    assert place["region"]["startLine"] == 9


def test_flake8_reports_the_findings(script):
    command = [sys.executable, "-m", "flake8", "--isolated", "--select", "DDP", str(script)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)

    assert [line.split()[1] for line in ended.stdout.splitlines()] == ["DDP021", "DDP005", "DDP013"]


def test_a_review_imports_no_torch(script):
    code = (
        "import sys, pathlib; from gradsync.review import review; "
        f"review([pathlib.Path({str(script)!r})]); sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
