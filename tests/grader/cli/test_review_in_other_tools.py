"""The findings of `gradsync review` in other tools: SARIF, flake8 and pre-commit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from review_samples import WRONG, run

from gradsync.review import review_text, sarif
from gradsync.review.catalogue import DEFAULT, RULES

ROOT = Path(__file__).parents[3]


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(WRONG)
    return path


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
# The parts of the official schema of SARIF 2.1.0 that these logs use.
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
                            help=_only(["text"], text=TEXT, markdown=TEXT),
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
    import jsonschema  # takes seconds, and each process imports all files of tests

    ended = run("--format", "sarif", script)

    log = json.loads(ended.stdout)
    jsonschema.validate(log, SCHEMA)
    assert ended.returncode == 1
    assert [result["ruleId"] for result in log["runs"][0]["results"]] == [
        "DDP021",
        "DDP005",
        "DDP013",
    ]
    rules = log["runs"][0]["tool"]["driver"]["rules"]
    assert [rule["help"]["markdown"].split(":")[0] for rule in rules] == [
        f"# {rule.code}" for rule in DEFAULT
    ]


def test_sarif_paths_are_valid_references():
    log = json.loads(sarif.render(review_text(WRONG, "a folder/train.py"), RULES, "1"))

    place = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "a%20folder/train.py"
    assert place["region"]["startLine"] == 9


def test_flake8_reports_the_findings(script):
    command = [sys.executable, "-m", "flake8", "--isolated", "--select", "DDP", str(script)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)

    assert [line.split()[1] for line in ended.stdout.splitlines()] == ["DDP021", "DDP005", "DDP013"]


@pytest.fixture
def repository(tmp_path):
    """Make a git repository of one wrong and one plain file, with the hook of this checkout."""
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    config = {"repos": [{"repo": "local", "hooks": [hook]}]}
    (tmp_path / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "train.py").write_text(WRONG)
    (tmp_path / "plain.py").write_text("print(1)\n")
    for arguments in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    return tmp_path


def test_the_pre_commit_hook_stops_a_commit_with_findings(repository, monkeypatch):
    monkeypatch.setenv("PRE_COMMIT_HOME", str(repository / ".cache"))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    command = ["pre-commit", "run", "gradsync-review"]

    wrong = subprocess.run(command, cwd=repository, check=False, capture_output=True, text=True)
    (repository / "train.py").write_text("print(2)\n")
    subprocess.run(["git", "add", "."], cwd=repository, check=True)
    right = subprocess.run(command, cwd=repository, check=False, capture_output=True, text=True)

    assert wrong.returncode == 1
    assert "train.py:13:11 DDP005 " in wrong.stdout
    assert (right.returncode, "Passed" in right.stdout) == (0, True)
