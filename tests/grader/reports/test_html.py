"""The report as a page."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from parsed_html import ParsedHtml
from report_samples import SCRIPT, SUM_NOT_MEAN, deadlock, report, verdict

from gradsync.class_records import ExerciseResult, Override, Person, Result
from gradsync.records import Diagnosis, Report
from gradsync.reports import html
from gradsync.reports.guide_sections import GuideText


def shown(of: Report, guides: Sequence[GuideText] = ()) -> ParsedHtml:
    return ParsedHtml(html.render(of, guides))


FAILED = verdict(status="failed", diagnosis=SUM_NOT_MEAN)


def test_the_page_shows_the_name_and_the_points():
    seen = shown(report(verdict(), verdict(points=0.5)))

    assert "ada: 1.5 of 2 points" in seen.text


def test_a_failed_test_is_a_card_with_message_and_diagnosis():
    seen = shown(report(FAILED)).text

    assert "average_gradients went wrong every rank has 4 times the mean" in seen
    assert "mistake sum-not-mean ranks 0 1 2 3 line template_trainer.py:94" in seen
    assert "read Gradient aggregation, phase1/GUIDELINES.md#gradient-aggregation" in seen


def corrected(reason: str = "appeal", **changes: float) -> str:
    override = Override("ada", "phase1/double", 2.0, reason, "Kim")
    exercise = ExerciseResult("phase1/double", 2.0, 4.0, (override,))
    result = Result("ada", "graded", 2.0, 4.0, exercises=(exercise,), **changes)
    return html.render(report(FAILED), result=result)


def test_the_lines_around_the_named_one_are_shown():
    source = "".join(f"line_{n} = {n}\n" for n in range(1, 200)).encode()
    files = {"phase1/template_trainer.py": source}
    shown = ParsedHtml(html.render(report(FAILED), files=files)).text

    assert "91 line_91 = 91" in shown
    assert "97 line_97 = 97" in shown
    assert "line_98" not in shown
    assert "line_94" not in html.render(report(FAILED))


@pytest.mark.parametrize("where", ["other.py:94", "template_trainer.py:999", "x", ""])
def test_a_line_that_the_files_lack_shows_no_code(where):
    files = {"phase1/template_trainer.py": b"x = 1\n"}
    lost = replace(FAILED, diagnosis=replace(SUM_NOT_MEAN, where=where))

    assert 'class="code"' not in html.render(report(lost), files=files)


def test_an_override_is_shown_with_its_reason_and_the_final_score():
    page = corrected()

    assert "Final score: 2 of 4 points" in page
    assert "Kim set the points to 2: appeal." in page
    assert '<text class="score" x="50" y="54">2</text>' in page
    assert "The tests alone give 0 of" in page
    assert SCRIPT not in corrected(reason=SCRIPT)


def test_the_page_shows_the_name_of_the_roster_and_the_corrected_points():
    override = Override("ada", "phase1/average_gradients", 0.5, "unclear", "Kim")
    exercises = (
        ExerciseResult("phase1/average_gradients", 0.5, 1.0, (override,)),
        ExerciseResult("rubric/style", 0.0, 5.0),
    )
    person = Person("17", "Ada Lovelace")
    result = Result("ada", "graded", 0.5, 6.0, exercises=exercises, person=person)
    seen = ParsedHtml(html.render(report(FAILED), result=result)).text

    assert "Ada Lovelace: 0.5 of 6 points" in seen
    assert "Ada Lovelace ada ." in seen
    assert "failed, 0 by the tests 0.5 / 1" in seen
    assert "Score so far: 0.5 of 6 points" in seen
    assert "Graded by hand style not graded yet – / 5" in seen


def test_lateness_is_shown():
    shown = " ".join(corrected(days_late=1.5, days_charged=2, points_lost=0.8).split())

    assert "after extensions and grace days: 2 days, 0.8 points. Each day that has begun" in shown


def test_a_result_without_corrections_changes_nothing():
    graded = report(FAILED)
    points = graded.score, graded.max_score
    unchanged = Result("ada", "graded", *points, tests=graded.verdicts)

    assert html.render(graded, result=unchanged) == html.render(graded)


GUIDE = GuideText(
    "phase1/GUIDELINES.md",
    """# Phase 1

## Gradient aggregation

Every rank needs the *mean*, see [Deadlocks](#deadlocks) and [PyTorch](https://pytorch.org).

![Four ranks add.](pictures/sum.svg)

### Why `None`

| rank | |
|---|---|
| 0 | `grad` |

## Deadlocks

A rank waits.
""",
    {"pictures/sum.svg": b"<svg/>"},
)


def test_the_section_to_read_is_in_the_page_with_its_pictures():
    seen = shown(report(FAILED), [GUIDE])

    assert "read Gradient aggregation" in seen.text
    assert "#guide-phase1-gradient-aggregation" in seen.values_of("href")
    assert "guide-phase1-gradient-aggregation" in seen.values_of("id")
    assert "Every rank needs the mean" in seen.text
    assert "A rank waits." not in seen.text
    assert "data:image/svg+xml;base64,PHN2Zy8+" in seen.values_of("src")
    assert "Four ranks add." in seen.values_of("alt")


def test_a_picture_that_does_not_exist_is_described():
    seen = shown(report(FAILED), [replace(GUIDE, pictures={})])

    assert "img" not in seen.tags
    assert "Four ranks add." in seen.text


def test_a_section_links_to_the_web_and_to_sections_in_the_page():
    stuck = verdict("evaluate", "deadlock", guide="Deadlocks")

    alone, both = (shown(report(*failed), [GUIDE]) for failed in ([FAILED], [FAILED, stuck]))

    assert alone.values_of("href").count("#guide-phase1-deadlocks") == 0
    assert both.values_of("href").count("#guide-phase1-deadlocks") == 2
    assert "https://pytorch.org" in alone.values_of("href")


def test_a_section_of_another_phase_is_found():
    stuck = verdict("ring", "deadlock", exercise="phase2/ring", guide="Deadlocks")

    assert "#guide-phase1-deadlocks" in shown(report(stuck), [GUIDE]).values_of("href")


def test_the_first_exercise_to_write_links_to_its_section():
    seen = shown(report(verdict("b", "unfinished", guide="Deadlocks")), [GUIDE])

    assert "Read: Deadlocks" in seen.text
    assert "#guide-phase1-deadlocks" in seen.values_of("href")


def test_an_empty_header_of_a_table_is_a_plain_cell():
    seen = shown(report(FAILED), [GUIDE])

    assert "rank 0 grad" in seen.text
    assert seen.values_of("scope").count("col") == 3 + 1  # of the points, and of the guide


def test_html_in_a_guide_is_shown_as_text():
    guide = replace(GUIDE, markdown=f"## Gradient aggregation\n\n{SCRIPT}\n")

    seen = shown(report(FAILED), [guide])

    assert seen.tags.count("script") == 1
    assert SCRIPT in seen.text


def test_headings_descend_by_one_level_at_a_time():
    unwritten = verdict("b", "unfinished", guide="Deadlocks")

    seen = shown(report(verdict("a"), FAILED, unwritten, notes=("x was ignored",)), [GUIDE])

    assert seen.headings[0] == 1
    assert seen.headings.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(seen.headings))


def test_the_page_has_a_language_captions_and_a_link_to_skip_to():
    seen = shown(report(FAILED))

    assert ("lang", "en") in seen.attributes
    assert seen.tags.count("caption") == seen.tags.count("table")
    assert "Skip to the first mistake" in seen.text
    assert {"#problem-1"} <= set(seen.values_of("href"))


def test_each_link_within_the_page_leads_somewhere():
    seen = shown(report(verdict("a"), FAILED, verdict("b", "unfinished")), [GUIDE])

    inner = {href[1:] for href in seen.values_of("href") if href.startswith("#")}

    assert "problem-1" in inner
    assert inner <= set(seen.values_of("id"))


def test_each_test_of_a_problem_is_on_the_page():
    other = verdict(
        status="failed", message="the second one", title="Sister.", diagnosis=SUM_NOT_MEAN
    )

    seen = shown(report(FAILED, other)).text

    assert "The same mistake in 1 more test Sister. the second one" in seen


def test_a_deadlock_shows_its_timeline():
    stuck = verdict(status="deadlock", events=deadlock(), world_size=4)

    seen = shown(report(stuck)).text

    assert "never called all_reduce #4" in seen


def test_a_test_without_a_run_has_no_timeline():
    assert "figure" not in shown(report(FAILED)).tags


def test_passed_tests_are_collapsed():
    seen = html.render(report(verdict(title="It is the mean.")))

    folded = re.search("<details.*?</details>", seen, re.DOTALL)

    assert folded
    assert "It is the mean." in folded[0]


def test_unfinished_exercises_are_one_list_without_cards():
    seen = shown(report(verdict("b", "unfinished"), verdict("a", "unfinished")))

    assert "Begin with b : gradsync hint b Then: a." in seen.text
    assert "article" not in seen.tags


def test_the_page_says_how_to_repeat_the_grade():
    assert "gradsync grade --seed 7" in shown(report()).text


def test_notes_are_shown():
    assert "x.ipynb was ignored" in shown(report(notes=("x.ipynb was ignored",))).text


def test_an_unreadable_submission_has_no_table():
    seen = shown(report(verdict(status="missing"), notes=("unreadable: not a zip archive",)))

    assert "Nothing could be read, so nothing was graded." in seen.text
    assert "Graded in" not in seen.text
    assert "table" not in seen.tags
    assert "Skip to the first mistake" not in seen.text


@pytest.mark.parametrize("hostile", [SCRIPT, '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}"])
def test_texts_of_a_learner_are_escaped(hostile):
    known = Diagnosis(hostile, (0, -1, 10**9), hostile, hostile, hostile)
    bad = verdict(hostile, "failed", message=hostile, title=hostile, id=hostile, diagnosis=known)

    seen = shown(report(bad, verdict("b"), submission=hostile, notes=(hostile,)))

    assert "img" not in seen.tags
    assert seen.tags.count("script") == 1
    assert not any(name.startswith("on") for name, _ in seen.attributes)
    assert seen.text.count(hostile) >= 5


def test_the_page_loads_nothing_from_outside():
    seen = html.render(report(FAILED, verdict(events=deadlock(), world_size=4)), [GUIDE])

    loaded = re.findall(r"<(?!a )[^>]*\b(?:src|href)=\"(?!#|data:image/)[^>]*", seen)

    assert not loaded
    assert not re.search(r"url\(|@import", seen)
    assert "default-src 'none'" in seen


def test_only_the_script_of_the_page_may_run():
    seen = html.render(report())

    script = re.search("<script>(.*?)</script>", seen, re.DOTALL)

    assert script
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert any(
        policy.endswith(f"script-src 'sha256-{digest}'")
        for policy in ParsedHtml(seen).values_of("content")
    )


def test_the_page_is_valid_utf8_for_any_message():
    seen = html.render(report(verdict(status="failed", message="\ud800\x00\x1b[31mred")))

    assert "\ufffd\ufffdred" in seen.encode("utf-8").decode("utf-8")


def test_a_report_without_points_can_be_rendered():
    assert "0 of 0" in shown(report(seconds=float("nan"))).text
