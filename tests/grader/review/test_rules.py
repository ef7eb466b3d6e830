"""Each rule finds its mistake, and finds nothing in correct scripts."""

import re
from pathlib import Path

import pytest

from checks import review_corpus, rule_index
from gradsync.course.catalogue import read_toml
from gradsync.course.patches import patched
from gradsync.review import review, review_text
from gradsync.review.catalogue import DEFAULT, RULES, page
from gradsync.review.checklist import EVIDENCE

ROOT = Path(__file__).parents[3]
SAMPLES = Path(__file__).parent / "samples"
RIGHT = sorted((SAMPLES / "right").glob("*.py"))
WRONG = {path.stem: path.read_text(encoding="utf-8") for path in (SAMPLES / "wrong").glob("*.py")}
SOLUTIONS = sorted((ROOT / "solutions").rglob("*.py"))


def with_patches(name):
    """Return a script of patches.toml, with the codes that it must get, as those of files."""
    row = PATCHES[name]
    text = (SAMPLES / "right" / row["script"]).read_text(encoding="utf-8")
    for old, new in row["patches"]:
        text = patched(text, old, new)
    return f"# expect: {', '.join(row['codes'])}\n{text}"


PATCHES = read_toml(SAMPLES / "wrong" / "patches.toml")
WRONG |= {name: with_patches(name) for name in PATCHES}


def code_of(page, heading):
    return re.search(rf"^## {heading}\n\n```python\n(.*?)^```", page, re.M | re.S)[1]


def page_of(rule):
    return page(rule.code)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_wrong_script_of_a_page_has_only_the_finding_of_its_rule(rule):
    text = code_of(page_of(rule), "Wrong")
    found = review_text(text, "wrong.py", [*DEFAULT, rule], unsure=True).findings

    assert [finding.code for finding in found] == [rule.code]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_right_script_of_a_page_has_no_findings(rule):
    text = code_of(page_of(rule), "Right")

    assert review_text(text, "right.py", RULES, unsure=True).findings == ()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_page_has_the_title_of_its_rule(rule):
    assert page_of(rule).startswith(f"# {rule.code}: {rule.title}\n")


def test_each_practice_has_evidence_that_is_looked_for():
    assert {rule.topic for rule in RULES} == set(EVIDENCE)


def test_the_index_lists_all_rules():
    assert rule_index.INDEX.read_text(encoding="utf-8") == rule_index.render(), (
        "run: python -m checks.rule_index"
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_page_says_what_was_measured(rule):
    assert page_of(rule) == rule_index.page(rule), "run: python -m checks.rule_index"


def test_the_documentation_says_what_was_measured():
    text = rule_index.DOCS.read_text(encoding="utf-8")

    assert rule_index.table() in text, "run: python -m checks.rule_index"
    for _, found, every in review_corpus.recall():
        assert re.search(rf"\b{found} of (the )?{every}\b", text)


def test_codes_are_numbered_without_gaps_or_repetition():
    codes = [rule.code for rule in RULES]

    assert codes == [f"DDP{number:03}" for number in range(1, len(RULES) + 1)]


@pytest.mark.parametrize("path", RIGHT, ids=lambda path: path.stem)
def test_nothing_is_found_in_a_correct_script(path):
    assert review([path]).findings == ()


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_nothing_is_found_in_a_solution(path):
    assert review([path], RULES, unsure=True).findings == ()


@pytest.mark.parametrize(
    "path",
    sorted(ROOT.glob("phase*/template_*.py")),
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_nothing_is_found_in_an_untouched_template(path):
    assert review([path]).findings == ()


@pytest.mark.parametrize("name", sorted(WRONG))
def test_the_mistake_of_a_wrong_script_is_found_in_its_line(name):
    text = WRONG[name]
    codes = re.search(r"^# expect: (.*)$", text, re.M)[1].split(", ")
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line.endswith("  # here")]

    found = review_text(text, "wrong.py", RULES, unsure=True).findings

    assert [(f.code, f.line) for f in found] == list(zip(codes, lines, strict=True))
