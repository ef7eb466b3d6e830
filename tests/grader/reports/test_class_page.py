"""The results of a class as a page."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timezone
from itertools import pairwise

import pytest
from class_samples import EXERCISES, class_of, outcome, result, sample_class
from parsed_html import ParsedHtml

from gradsync.class_records import (
    ClassResults,
    ExerciseResult,
    Facts,
    Override,
    Person,
    Result,
    Similar,
)
from gradsync.records import Diagnosis
from gradsync.reports import class_page as page
from gradsync.reports.guide_sections import GuideText

SAMPLER, GRADIENTS, RING = (exercise.id for exercise in EXERCISES)
GUIDE = GuideText("phase1/GUIDELINES.md", "## Data\n\nShards.\n\n## Gradients\n\nThe mean.\n")
RIGHT = outcome(GRADIENTS, 10.0, 10.0)
WRONG = outcome(GRADIENTS, 0.0, 10.0, "sum-not-mean")


def shown(of: ClassResults, guides: tuple[GuideText, ...] = ()) -> ParsedHtml:
    return ParsedHtml(page.render(of, guides))


def said(*notes: str) -> Facts:
    """Return what a download says about a submission."""
    return Facts("", "", notes=notes)


def test_the_page_counts_what_happened_to_the_submissions():
    seen = shown(sample_class(20)).text

    assert "graded 20 of 23" in seen
    assert "missing 1 unreadable 1 grader failed 1 late 3 with overrides 1" in seen


def test_scores_are_shown_as_a_distribution():
    seen = shown(class_of(result("a", RIGHT), result("b", RIGHT), result("c", WRONG))).text

    assert "0–9% 1" in seen
    assert "90–100% 2" in seen
    assert "Lowest 0.0%, mean 66.7%, median 100.0%, highest 100.0%" in seen


def test_exercises_are_sorted_by_success():
    half = outcome(SAMPLER, 5.0, 10.0)
    unwritten = outcome(RING, 0.0, 20.0, status="unfinished")

    seen = shown(class_of(result("a", half, RIGHT, unwritten))).text

    assert (
        seen.index("ring_all_reduce phase2 0% 0 of 1 1")
        < seen.index("PaddedDistributedSampler phase1 50% 0 of 1 0")
        < seen.index("average_gradients phase1 100% 1 of 1 0")
    )


def test_a_mistake_is_shown_with_those_who_made_it_and_with_the_section_to_read():
    seen = shown(class_of(result("ada", WRONG), result("bob", WRONG), result("c", RIGHT)), (GUIDE,))

    assert "sum-not-mean 2 of 3 For example: This is what sum-not-mean means." in seen.text
    assert "in average_gradients read Gradients learners ada bob" in seen.text
    assert "#guide-phase1-gradients" in seen.values_of("href")
    assert "The mean." in seen.text


def test_a_mistake_in_two_tests_of_a_submission_counts_once():
    again = replace(WRONG, id="another")

    assert "sum-not-mean 1 of 1" in shown(class_of(result("ada", WRONG, again))).text


def test_the_most_common_mistake_comes_first():
    rare = outcome(GRADIENTS, 0.0, 10.0, "divided-twice")

    seen = shown(class_of(result("a", rare), result("b", WRONG), result("c", WRONG))).text

    assert seen.index("sum-not-mean 2 of 3") < seen.index("divided-twice 1 of 3")


def test_an_exercise_that_is_not_written_is_not_a_mistake():
    unwritten = outcome(GRADIENTS, 0.0, 10.0, "unfinished", "unfinished")

    assert "The most common mistakes" not in shown(class_of(result("a", unwritten))).text


def test_a_missing_function_is_a_mistake():
    renamed = outcome(GRADIENTS, 0.0, 10.0, "missing-name", "missing")

    assert "missing-name 1 of 1" in shown(class_of(result("a", renamed))).text


def test_people_are_sorted_by_name():
    names = {"s1": "emmy", "s2": "Ada", "s3": "Zoe"}
    members = [result(id, RIGHT, person=Person(id, name)) for id, name in names.items()]

    seen = shown(class_of(*members, result("bob", RIGHT))).text

    assert seen.rindex("Ada") < seen.rindex("bob") < seen.rindex("emmy") < seen.rindex("Zoe")


def test_people_who_share_a_name_are_listed_with_their_ids():
    people = [Person("s1", "Wei Zhang"), Person("s2", "Wei Zhang"), Person("s3", "Ada")]
    wei, zhang = (result(f"weizhang-{one.id}", WRONG, person=one) for one in people[:2])

    seen = shown(class_of(wei, zhang, result("lovelace", WRONG, person=people[2]))).text

    assert "learners Wei Zhang (s1) Wei Zhang (s2) Ada" in seen
    assert "Wei Zhang (s1) weizhang-s1 0 / 10" in seen
    assert "Ada lovelace, s3 0 / 10" in seen


def test_similar_code_is_listed_by_group():
    members = [result(name, RIGHT) for name in ("ada", "bob", "cleo")]
    found = Similar(("ada", "bob", "cleo"), (("phase1/a.py", 1.0), ("phase1/b.py", 0.934)))

    seen = shown(class_of(*members, similar=(found,))).text

    assert "3 submissions, phase1/a.py identical, phase1/b.py about 93% the same: ada bob" in seen


def test_an_unusual_score_and_time_are_named_with_the_rule():
    usual = [result(f"s{number}", RIGHT, seconds=10.0 + number % 3) for number in range(12)]
    odd = result("odd", WRONG, seconds=300.0)

    seen = shown(class_of(*usual, odd)).text

    assert "odd : a low score, slow to grade (0 of 10 points, 300 s)" in seen
    assert "called unusual if it has a score below 85%" in seen


def test_equal_scores_do_not_make_a_slightly_lower_one_unusual():
    nearly = outcome(GRADIENTS, 9.0, 10.0)
    usual = [result(f"s{number}", RIGHT) for number in range(12)]

    assert "a low score" not in shown(class_of(*usual, result("nearly", nearly))).text


def test_a_failure_of_the_grader_is_shown_with_its_reason():
    lost = Result("ada", "grader-failed", notes=("no space left on device",), folder="ada")

    seen = shown(class_of(lost))

    assert "The grader failed" in seen.text
    assert "ada : no space left on device" in seen.text
    assert "ada/report.html" not in seen.values_of("href")


def test_missing_people_are_listed_with_their_addresses():
    person = Person("s1", "Emmy Noether", "emmy@example.org")

    assert (
        "Emmy Noether (emmy@example.org)"
        in shown(class_of(Result("s1", "missing", person=person))).text
    )


def test_overrides_and_lateness_have_tables():
    given = Override("ada", GRADIENTS, 8.0, "The line was right.", "Noether")
    exercises = (ExerciseResult(GRADIENTS, 8.0, 10.0, (given,)),)

    late = {"days_late": 1.5, "days_charged": 2, "points_lost": 20.0}
    seen = shown(class_of(result("ada", WRONG, exercises=exercises, **late)))

    assert "ada phase1/average_gradients 8 The line was right. Noether" in seen.text
    assert "ada 1.5 2 days, 20 points" in seen.text
    assert "1 override, late: 2 days, 20 points" in seen.text


def test_an_extension_is_named():
    due = datetime(2026, 11, 2, 23, 59, tzinfo=timezone.utc)
    person = Person("a1", "Ada", due=due, days=1.0)

    seen = shown(class_of(result("ada", person=person)))

    assert "granted: due 2026-11-02 23:59+00:00, 1 more day" in seen.text


def test_a_person_is_asked_to_look_at_everything_that_was_read_with_a_doubt():
    whole = Diagnosis("exception", (), "a.py:1 raises ModuleNotFoundError: no pandas. Move.",
                      whole_file=True)  # fmt: skip
    notes = (
        "refused: a.py is a link",
        "unreadable: b.zip is empty",
        "assumed: A.py is a.py",
        "missing: phase2",
        "missing: a/b",
    )
    seen = shown(
        class_of(
            result("ada", outcome(GRADIENTS, 0.0, 10.0, status="error", diagnosis=whole)),
            result("bob", RIGHT, notes=notes, facts=said("Canvas marks it as late")),
        )
    ).text

    attention = seen[seen.index("Needs attention") : seen.index("Exercises by success")]
    assert "ada : a.py:1 raises ModuleNotFoundError: no pandas." in attention
    assert "Missing or unread files They have no points." in attention
    for text in (
        "no phase2; no a/b; a.py is a link; b.zip is empty",
        "A.py is a.py",
        "Canvas marks it as late",
    ):
        assert f"bob : {text}" in attention


def test_the_remarks_have_what_the_download_says_and_no_other_notes():
    note = "Canvas marks it as late"
    notes = (note, "missing: phase1/template_trainer.py")
    late = result("ada", RIGHT, notes=notes, facts=said(note))

    seen = shown(class_of(late)).text

    assert note in seen
    assert "missing: phase1/template_trainer.py" not in seen


def test_names_link_to_the_reports():
    folder = "50%25 <b>"

    seen = shown(class_of(result("50% <b>", RIGHT, folder=folder)))

    assert "50%2525%20%3Cb%3E/report.html" in seen.values_of("href")


@pytest.mark.parametrize(
    "hostile", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}"]
)
def test_names_and_texts_are_escaped(hostile):
    bad = outcome(GRADIENTS, 0.0, 10.0, hostile)
    given = Override(hostile, GRADIENTS, 8.0, hostile, hostile)
    person = Person(hostile, hostile, hostile, hostile)
    learner = result(
        hostile, bad, person=person, exercises=(ExerciseResult(GRADIENTS, 8, 10, (given,)),)
    )
    lost = Result(f"{hostile}2", "grader-failed", notes=(hostile,))

    seen = shown(class_of(learner, lost, title=hostile, warnings=(hostile,)))

    assert seen.tags.count("script") == 2
    assert "img" not in seen.tags
    assert not any(name.startswith("on") for name, _ in seen.attributes)
    assert seen.text.count(hostile) >= 8


def test_a_name_can_not_reverse_the_text_around_it():
    seen = page.render(class_of(result("ab\u202ecd", RIGHT), result("אברהם", RIGHT)))

    assert "\u202e" not in seen
    assert "<bdi>אברהם</bdi>" in seen


def test_the_page_loads_nothing_from_outside():
    policy = shown(sample_class(3)).values_of("content")[-1]

    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")
    assert policy.count("sha256-") == 2


def test_the_table_of_all_says_what_it_is_and_has_a_header_for_each_row():
    seen = shown(sample_class(5))

    assert seen.tags.count("caption") == seen.tags.count("table")
    assert seen.values_of("scope").count("row") >= 8
    assert seen.headings[0] == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(seen.headings))


def test_each_link_within_the_page_leads_somewhere():
    seen = shown(sample_class(20), (GUIDE,))

    inner = {href[1:] for href in seen.values_of("href") if href.startswith("#")}

    assert inner <= set(seen.values_of("id"))
    assert len(seen.values_of("id")) == len(set(seen.values_of("id")))


def test_an_empty_class_can_be_rendered():
    assert "Results of 0 learners" in shown(class_of()).text


def test_a_class_without_a_graded_submission_can_be_rendered():
    assert "Handed in nothing" in shown(class_of(Result("a", "missing"))).text


def test_the_page_of_a_large_class_takes_less_than_a_second():
    results = sample_class(1000, tests=60)
    page.render(sample_class(1))  # compiles the template

    begun = time.process_time()
    page.render(results)

    assert time.process_time() - begun < 1.0
