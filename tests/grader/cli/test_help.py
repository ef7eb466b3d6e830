"""`gradsync --help` imports no command: their names and summaries are in a table."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import gradsync
from gradsync.cli.app import COMMANDS, app, complete

HELP = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps([*sys.modules]), file=sys.stderr))
sys.argv = ["gradsync", "--help"]
from gradsync.cli import main
main()
"""
HEAVY = {"numpy", "pytest", "jinja2", "msgspec", "markdown_it", "pygments"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_in_the_list_is_the_first_line_of_the_command_s_help(name):
    assert complete(name).help.partition("\n")[0] == COMMANDS[name].summary


def test_the_list_shows_every_command_and_imports_none(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", HELP], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    modules = set(json.loads(ran.stderr))

    assert [name for name in COMMANDS if f" {name} " not in ran.stdout] == []
    assert {f"gradsync.cli.{place.module}" for place in COMMANDS.values()} & modules == set()
    assert HEAVY & modules == set()


def test_the_version_is_shown():
    shown = CliRunner().invoke(app, ["--version"])

    assert (shown.exit_code, shown.output) == (0, f"gradsync {gradsync.__version__}\n")
