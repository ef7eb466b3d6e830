"""The autograded class in nbgrader's formgrader, opened in a real browser."""

import pytest
from chromium import browser
from lab import SECONDS, TOKEN, server

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("one class, in one process")]

COLUMNS = {"name": 1, "score": 2, "needs a person": 6}


@pytest.fixture(scope="module")
def formgrader(graded):
    """A function that opens a page of formgrader."""
    folder, _ = graded
    with browser() as started, server(folder.root) as address:
        page = started.new_page(viewport={"width": 1200, "height": 1000})
        page.set_default_timeout(SECONDS * 1000)
        page.goto(f"{address}formgrader?token={TOKEN}")  # sets a cookie

        def open_page(path):
            page.goto(f"{address.rstrip('/')}{path}")
            return page

        yield open_page


@pytest.fixture
def submissions(formgrader):
    """The table of submissions: learner -> (address, columns)."""
    page = formgrader("/formgrader/gradebook/phase1/phase1")
    page.locator("tbody a", has_text="Submission #5").first.wait_for()
    rows = page.locator("tbody tr").all()
    return {
        row.locator("a.name-shown").text_content(): (
            row.locator("a.name-shown").get_attribute("href"),
            {name: row.locator("td").nth(i).inner_text().strip() for name, i in COLUMNS.items()},
        )
        for row in rows
    }


def test_every_learner_is_listed_with_a_score_and_needs_no_manual_grading(submissions, graded):
    folder, _ = graded
    sums = {name: sum(points.values()) for name, points in folder.points("phase1").items()}

    shown = {name: columns["score"] for name, (_, columns) in submissions.items()}
    assert shown == {name: f"{points:g} / 100" for name, points in sums.items()}
    assert {columns["needs a person"] for _, columns in submissions.values()} == {""}


def test_a_submission_shows_its_deadlock_and_points(formgrader, submissions):
    page = formgrader(submissions["cleo"][0])
    page.get_by_text("returned without calling").first.wait_for()

    labels = page.locator(".gs-timeline text.label")
    colours = labels.evaluate_all("es => es.map(e => getComputedStyle(e).fill)")
    drawing = page.locator(".gs-timeline").first.bounding_box()
    cell = page.locator("#grade-average_gradients")
    assert set(colours) == {page.evaluate("getComputedStyle(document.body).color")}
    assert drawing["width"] <= page.locator(".gs-cell").first.bounding_box()["width"]
    assert cell.get_attribute("placeholder") == "10"
