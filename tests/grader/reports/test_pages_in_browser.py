"""Both pages in a real browser: on a phone, by keyboard, on paper and without JavaScript."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chromium import browser
from class_samples import EXERCISES, outcome, result, sample_class
from playwright.sync_api import Browser, Page
from report_samples import SUM_NOT_MEAN, long_run, report, verdict

from gradsync.reports import class_page, html
from gradsync.reports.guide_sections import GuideText

pytestmark = pytest.mark.slow  # starting the browser takes seconds

LONG = "ResumableDistributedSampler"
GUIDE = GuideText(
    "phase1/GUIDELINES.md", "## Gradient aggregation\n\nThe mean.\n\n## Data\n\nShards.\n"
)
REPORT = report(
    verdict(LONG),
    verdict(status="failed", diagnosis=SUM_NOT_MEAN, events=long_run(), world_size=4),
    submission="Müller-Lüdenscheidt_Wolfgang_assignsubmission_file",
)
HOSTILE = ("<script>alert(1)</script>", "x" * 300, "אברהם")
PHONE, DESK = 360, 1280

Opening = Callable[..., Page]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a report and a class page with names of all kinds."""
    folder = tmp_path_factory.mktemp("pages")
    odd = [result(name, outcome(EXERCISES[0].id, 0.0, 10.0, "padding-wrong")) for name in HOSTILE]
    members = sample_class(40)
    members = replace(members, results=(*members.results, *odd))
    texts = {
        "report": html.render(REPORT, [GUIDE]),
        "class": class_page.render(members, [GUIDE]),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


@pytest.fixture
def opened(chromium, pages) -> Iterator[Opening]:
    """Return a function that opens a page; at the end, no page may have reported an error."""
    contexts, errors = [], []

    def open_page(name: str, width: int = DESK, **more: Any) -> Page:
        context = chromium.new_context(viewport={"width": width, "height": 800}, **more)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(pages[name].as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


@pytest.mark.parametrize("name", ["report", "class"])
def test_a_phone_scrolls_the_page_in_one_direction(opened, name):
    page = opened(name, PHONE)

    assert page.evaluate("document.documentElement.scrollWidth") == PHONE


def test_a_phone_shows_the_score_without_scrolling(opened):
    ring = opened("report", PHONE).locator(".ring").bounding_box()

    assert ring["y"] + ring["height"] < 400


def test_a_phone_shows_a_long_table_and_timeline_from_the_left(opened):
    scrolling = [
        opened("report", PHONE).locator("figure .scroll"),
        opened("class", PHONE).locator(".scroll:has(#all)"),
    ]

    for box in scrolling:
        assert box.evaluate("(box) => box.scrollWidth > box.clientWidth && box.scrollLeft === 0")


def test_names_are_divided_between_their_parts_only(opened):
    page = opened("report", PHONE)

    broken = page.get_by_role("rowheader", name=LONG).evaluate(
        """(header) => {
          const broken = [];
          const walk = document.createTreeWalker(header, NodeFilter.SHOW_TEXT);
          while (walk.nextNode()) {
            const range = document.createRange();
            range.selectNodeContents(walk.currentNode);
            const words = walk.currentNode.data.trim();
            const tops = new Set([...range.getClientRects()].map((line) => line.top));
            if (words && tops.size > 1) broken.push(words);
          }
          return broken;
        }"""
    )

    assert broken == []


def test_read_opens_the_section_of_the_guide(opened):
    page = opened("report")
    section = page.get_by_text("The mean.")
    assert not section.is_visible()

    page.get_by_role("link", name="Gradient aggregation").click()

    assert section.is_visible()
    assert page.evaluate("document.activeElement.id") == "guide-phase1-gradient-aggregation"


@pytest.mark.parametrize("name", ["report", "class"])
def test_the_first_key_reaches_a_visible_link_that_skips_to_the_content(opened, name):
    page = opened(name)
    page.keyboard.press("Tab")
    link = page.locator(":focus")
    place = link.bounding_box()

    assert "Skip to" in link.inner_text()
    assert place is not None
    assert place["y"] > 0
    assert link.evaluate("(link) => getComputedStyle(link).outlineStyle") == "solid"

    page.keyboard.press("Enter")

    assert page.evaluate("document.activeElement.id") in ("problem-1", "submissions")


def test_the_table_of_all_is_sorted_by_buttons(opened):
    page = opened("class")
    header = page.locator("#all th", has_text="Score")
    button = header.get_by_role("button")
    scores = "[...document.querySelectorAll('#all tbody tr')].map((row) => row.cells[1].innerText)"

    button.focus()
    page.keyboard.press("Enter")
    rising = [float(text.split("/")[0]) for text in page.evaluate(scores) if text]

    assert header.get_attribute("aria-sort") == "ascending"
    assert rising == sorted(rising)

    button.press("Enter")

    assert header.get_attribute("aria-sort") == "descending"
    assert page.evaluate(scores)[0] == "40 / 40"
    assert page.evaluate(scores)[-1] == ""


def test_the_table_of_all_can_be_filtered(opened):
    page = opened("class")
    rows = page.locator("#all tbody tr:visible")

    page.get_by_label("State").select_option("missing")

    assert rows.count() == 1
    assert page.locator("output").inner_text() == "1 of 46 shown"

    page.get_by_label("State").select_option("all")
    page.get_by_label("Search").fill("student0007 ")

    assert rows.count() == 1


def test_without_javascript_the_class_is_a_plain_table(opened):
    page = opened("class", java_script_enabled=False)

    assert page.locator("#all tbody tr:visible").count() == 46
    assert page.locator("#all button").count() == 0
    assert not page.get_by_label("Search").is_visible()


@pytest.mark.parametrize("javascript", [True, False])
def test_paper_shows_collapsed_parts_and_the_complete_timeline(opened, javascript):
    page = opened("report", java_script_enabled=javascript, color_scheme="dark")
    page.emulate_media(media="print")

    box, drawing = (page.locator(f"figure .scroll{part}").bounding_box() for part in ("", " svg"))

    assert box is not None
    assert drawing is not None
    assert drawing["width"] <= box["width"]
    assert page.get_by_text("The mean.").bounding_box()["height"] > 0
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
