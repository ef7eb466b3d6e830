"""The files that describe the repository agree with each other."""

import re
import subprocess
import sys

import pytest
import yaml
from texts import ROOT, files_of

import gradsync
import gradsync.cases
import gradsync.notebook
import gradsync.testing
from gradsync.course.catalogue import read_toml

PROJECT = read_toml(ROOT / "pyproject.toml")["project"]
ADDRESS = PROJECT["urls"]["Repository"]
TEMPLATES = "gradsync/course/release/files"
CHECKED = {  # by the schema that others publish for them
    "citation-file-format": ["CITATION.cff"],
    "github-actions": [".github/actions/*/action.yml"],
    "github-issue-config": [".github/ISSUE_TEMPLATE/config.yml"],
    "github-issue-forms": [".github/ISSUE_TEMPLATE/[!c]*.yml"],
    "github-workflows": [".github/workflows/*.yml", f"{TEMPLATES}/check.yml"],
    "gitlab-ci": [f"{TEMPLATES}/gitlab-ci.yml"],
}
SHOWN = {"github-workflows": ".github/workflows/review.yml", "gitlab-ci": ".gitlab-ci.yml"}


def test_each_file_names_the_same_address():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())

    assert citation["repository-code"] == ADDRESS
    for name in ("README.md", "docs/install.md", "docs/engine.md", "docs/review.md"):
        assert f"@ git+{ADDRESS}'" in (ROOT / name).read_text()
    path = ADDRESS.removeprefix("https://github.com")
    for hosted in (f"mybinder.org/v2/gh{path}/main?", f"codespaces.new{path})"):
        assert hosted in (ROOT / "docs/notebooks.md").read_text()
    for name in ("SECURITY.md", ".github/ISSUE_TEMPLATE/config.yml"):
        assert f"{ADDRESS}/security/advisories/new" in (ROOT / name).read_text()


def test_the_citation_has_the_version_and_the_license():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())

    assert citation["version"] == gradsync.__version__
    assert citation["license"] == PROJECT["license"]
    assert gradsync.__version__ in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("schema", CHECKED)
def test_what_other_programs_read_has_their_schema(schema, tmp_path):
    files = [path for pattern in CHECKED[schema] for path in ROOT.glob(pattern)]
    if schema in SHOWN:
        files.append(tmp_path / "shown.yml")
        files[-1].write_text(files_of("docs/review.md")[SHOWN[schema]], encoding="utf-8")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    if schema == "gitlab-ci":
        command += ["--data-transform", "gitlab-ci"]  # its `!reference` tags

    ended = subprocess.run([*command, *files], check=False, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stdout


def test_every_yaml_file_of_the_code_host_has_a_schema():
    checked = {path for patterns in CHECKED.values() for p in patterns for path in ROOT.glob(p)}

    assert set((ROOT / ".github").glob("**/*.yml")) <= checked


def test_the_readme_s_links_within_the_repository_lead_to_files():
    links = re.findall(r"\]\((?!https:)([^)#]*)", (ROOT / "README.md").read_text())

    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_the_paper_counts_the_submissions_of_the_last_make_truth():
    figures = (ROOT / "docs/figures.md").read_text()
    mistakes, correct = (
        sum(map(int, re.findall(r"(\d+) of \d+", re.search(rf"\| {row}.*", figures)[0])))
        for row in ("mistakes caught", "correct answers")
    )

    paper = " ".join((ROOT / "paper/paper.md").read_text().split())
    assert (
        f"grades {mistakes} submissions with one known mistake each and {correct} correct" in paper
    )


def test_public_names_change_only_on_purpose():
    modules = (gradsync, gradsync.cases, gradsync.notebook, gradsync.testing)

    assert {module.__name__: set(module.__all__) for module in modules} == {
        "gradsync": {
            *("LauncherError", "RankFailure", "RankWarning", "__version__", "kill", "run_ranks"),
            *("slow", "write_flight_records"),
        },
        "gradsync.cases": {"RanksMixin", "RanksTestCase", "skip_if_lt_x_gpu", "with_comms"},
        "gradsync.notebook": {"check", "grade"},
        "gradsync.testing": {
            *("EXACT", "Mistake", "assert_collectives", "assert_no", "assert_on_every_rank"),
            *("assert_rank_by_rank", "by_rank", "bytes_by_group", "bytes_by_op", "case_by_case"),
            *("check", "check_no_deadlock", "each", "early", "exercise", "free_port"),
            *("raise_mistake", "seen_of"),
        },
    }
