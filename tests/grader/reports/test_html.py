"""The report as a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from report_samples import SCRIPT, SUM_NOT_MEAN, deadlock, report, verdict

from gradsync.records import Diagnosis, Report
from gradsync.reports import html

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """The tags, attributes and words of a page; fails if a tag is not closed."""

    def __init__(self, of: Report) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(html.render(of))
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


FAILED = verdict(status="failed", diagnosis=SUM_NOT_MEAN)


def test_the_page_shows_the_name_and_the_points():
    seen = Page(report(verdict(), verdict(points=0.5)))

    assert "ada: 1.5 of 2 points" in seen.text


def test_a_failed_test_is_a_card_with_message_and_diagnosis():
    seen = Page(report(FAILED)).text

    assert "average_gradients went wrong every rank has 4 times the mean" in seen
    assert "mistake sum-not-mean ranks 0 1 2 3 line template_trainer.py:94" in seen
    assert "Gradient aggregation, phase1/GUIDELINES.md#gradient-aggregation" in seen


def test_a_failed_exercise_links_to_its_card():
    seen = Page(report(verdict("evaluate"), FAILED))

    assert ("href", "#problem-1") in seen.attributes
    assert ("id", "problem-1") in seen.attributes


def test_each_test_of_a_problem_is_on_the_page():
    other = verdict(
        status="failed", message="the second one", title="Sister.", diagnosis=SUM_NOT_MEAN
    )

    seen = Page(report(FAILED, other)).text

    assert "The same mistake in 1 more test Sister. the second one" in seen


def test_a_deadlock_shows_its_timeline():
    stuck = verdict(status="deadlock", events=deadlock(), world_size=4)

    seen = Page(report(stuck)).text

    assert "never called all_reduce #4" in seen


def test_a_test_without_a_run_has_no_timeline():
    assert "figure" not in Page(report(FAILED)).tags


def test_passed_tests_are_collapsed():
    seen = html.render(report(verdict(title="It is the mean.")))

    folded = re.search("<details.*?</details>", seen, re.DOTALL)

    assert folded
    assert "It is the mean." in folded[0]


def test_unfinished_exercises_are_one_list_without_cards():
    seen = Page(report(verdict("b", "unfinished"), verdict("a", "unfinished")))

    assert "Begin with b : gradsync hint b Then: a." in seen.text
    assert "article" not in seen.tags


def test_the_page_says_how_to_repeat_the_grade():
    assert "gradsync grade --seed 7" in Page(report()).text


def test_notes_are_shown():
    assert "x.ipynb was ignored" in Page(report(notes=("x.ipynb was ignored",))).text


def test_an_unreadable_submission_has_no_table():
    seen = Page(report(verdict(status="missing"), notes=("unreadable: not a zip archive",)))

    assert "Nothing could be read, so nothing was graded." in seen.text
    assert "table" not in seen.tags


@pytest.mark.parametrize("hostile", [SCRIPT, '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}"])
def test_texts_of_a_learner_are_escaped(hostile):
    known = Diagnosis(hostile, (0, -1, 10**9), hostile, hostile, hostile)
    bad = verdict(hostile, "failed", message=hostile, title=hostile, id=hostile, diagnosis=known)

    seen = Page(report(bad, verdict("b"), submission=hostile, notes=(hostile,)))

    assert not {"script", "img"} & set(seen.tags)
    assert not any(name.startswith("on") for name, _ in seen.attributes)
    assert seen.text.count(hostile) >= 5


def test_the_page_loads_nothing_from_outside():
    seen = html.render(report(FAILED, verdict(events=deadlock(), world_size=4)))

    assert not re.search(r"(?:src|href)=\"(?!#)|url\(|@import", seen)
    assert "default-src 'none'" in seen


def test_the_page_is_valid_utf8_for_any_message():
    seen = html.render(report(verdict(status="failed", message="\ud800\x00\x1b[31mred")))

    assert "\ufffd\ufffdred" in seen.encode("utf-8").decode("utf-8")


def test_the_same_report_gives_the_same_page():
    assert html.render(report(FAILED)) == html.render(report(FAILED))


def test_a_report_without_points_can_be_rendered():
    assert "0 of 0" in Page(report(seconds=float("nan"))).text
