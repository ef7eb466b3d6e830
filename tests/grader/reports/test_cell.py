"""The report as a fragment for a notebook."""

from __future__ import annotations

import re

import pytest
from parsed_html import ParsedHtml
from report_samples import SCRIPT, SUM_NOT_MEAN, deadlock, report, verdict

from gradsync.records import Diagnosis, Report
from gradsync.reports.notebook import cell

FAILED = verdict(status="failed", diagnosis=SUM_NOT_MEAN)


def shown(of: Report) -> ParsedHtml:
    return ParsedHtml(cell.render(of))


def test_each_exercise_has_a_line_with_its_status_and_points():
    seen = shown(report(verdict(), verdict("evaluate", "failed"))).text

    assert "✓ average_gradients done 1 of 1 points" in seen
    assert "✗ evaluate failed 0 of 1 points" in seen


def test_a_failed_test_shows_its_message_and_its_diagnosis():
    seen = shown(report(FAILED)).text

    assert "average_gradients went wrong every rank has 4 times the mean" in seen
    assert "mistake sum-not-mean ranks 0 1 2 3 line template_trainer.py:94" in seen


def test_ranks_have_their_colours():
    chips = [value for name, value in shown(report(FAILED)).attributes if name == "style"]

    assert chips[:2] == ["--rank: #3f7fd9", "--rank: #dd7a1b"]


def test_passed_tests_are_collapsed():
    seen = cell.render(report(verdict(title="It is the mean."), FAILED))

    folded = re.search("<details>.*?</details>", seen, re.DOTALL)

    assert folded
    assert "It is the mean." in folded[0]
    assert "1 test passed" in folded[0]


def test_an_unfinished_exercise_is_shown_once_with_a_hint():
    gap = verdict(status="unfinished", message="phase1/average_gradients is not written yet")

    seen = shown(report(gap, gap)).text

    assert seen.count("is not written yet") == 1
    assert "gradsync hint average_gradients" in seen


def test_it_says_how_to_repeat_the_check():
    seen = shown(report(command='gradsync.notebook.check("a", a, ')).text

    assert 'gradsync.notebook.check("a", a, seed=7)' in seen


def test_notes_are_shown():
    assert "x.py was refused" in shown(report(notes=("x.py was refused",))).text


def test_styles_do_not_affect_the_notebook():
    [style] = re.findall("<style>(.*?)</style>", cell.render(report(FAILED)), re.DOTALL)
    rules = re.findall(r"([^{}]+)\{[^{}]*\}", re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL))
    selectors = [part.strip() for rule in rules for part in rule.split(",")]

    assert len(selectors) > 20
    assert all(re.match(r"\.gs(-cell)?( |$)", selector) for selector in selectors)


def test_colours_work_in_light_and_dark_themes():
    [style] = re.findall("<style>(.*?)</style>", cell.render(report(FAILED)), re.DOTALL)
    colours = [line for line in style.splitlines() if re.search("#[0-9a-f]{3,6}", line)]

    assert all("currentColor" in line for line in colours)


@pytest.mark.parametrize("hostile", [SCRIPT, '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}"])
def test_texts_of_a_learner_are_escaped(hostile):
    known = Diagnosis(hostile, (0, -1, 10**9), hostile, hostile, hostile)
    bad = verdict(hostile, "failed", message=hostile, title=hostile, id=hostile, diagnosis=known)
    gap = verdict(hostile, "unfinished", message=hostile, id=hostile, title=hostile)
    done = verdict(hostile, id=hostile, title=hostile)

    seen = shown(report(bad, gap, done, notes=(hostile,), command=hostile))

    assert not {"script", "img"} & set(seen.tags)
    assert not any(name.startswith("on") for name, _ in seen.attributes)
    assert seen.text.count(hostile) >= 6


def test_it_loads_nothing_from_outside():
    seen = cell.render(report(FAILED, verdict(events=deadlock(), world_size=4)))

    assert not re.search(r"(?:src|href)=|url\(|@import", seen)


def test_the_section_of_the_guide_is_a_link_from_the_folder_of_the_notebook():
    page = ParsedHtml(cell.render(report(FAILED), "../my course"))

    links = [value for name, value in page.attributes if name == "href"]
    assert links
    assert all(link.startswith("../my%20course/phase1/GUIDELINES.md#") for link in links)


def test_without_the_folder_of_the_course_there_is_no_link():
    assert "<a " not in cell.render(report(FAILED))
