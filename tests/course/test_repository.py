"""The files that describe the repository agree with each other."""

from pathlib import Path

import pytest
import yaml

import gradsync
import gradsync.notebook
import gradsync.testing
from gradsync.course.catalogue import read_toml

ROOT = Path(__file__).parents[2]
PROJECT = read_toml(ROOT / "pyproject.toml")["project"]
ADDRESS = PROJECT["urls"]["Repository"]
FORMS = sorted((ROOT / ".github").glob("**/*.yml"))


def test_each_file_names_the_same_address():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())

    assert citation["repository-code"] == ADDRESS
    for name in ("SECURITY.md", ".github/ISSUE_TEMPLATE/config.yml"):
        assert f"{ADDRESS}/security/advisories/new" in (ROOT / name).read_text()


def test_the_citation_has_the_version_and_the_license():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())

    assert citation["version"] == gradsync.__version__
    assert citation["license"] == PROJECT["license"]
    assert gradsync.__version__ in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_a_form_or_workflow_is_valid_yaml(form):
    assert isinstance(yaml.safe_load(form.read_text()), dict)


def test_public_names_change_only_on_purpose():
    names = {module.__name__: set(module.__all__) for module in (gradsync, gradsync.notebook)}

    assert names == {
        "gradsync": {
            *("LauncherError", "RankFailure", "RankWarning", "__version__", "kill", "run_ranks"),
            *("slow", "write_flight_records"),
        },
        "gradsync.notebook": {"check", "grade"},
    }
    assert {"assert_on_every_rank", "exercise", "raise_mistake"} <= set(gradsync.testing.__all__)
