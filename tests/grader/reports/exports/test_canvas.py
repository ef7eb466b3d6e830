"""CSV for Canvas, read as Canvas's importer does (lib/gradebook_importer.rb)."""

import csv
import io
import re
from dataclasses import replace

import pytest
from export_samples import CLASS, LATE, MISSING, NAMES, STRANGER

from gradsync.class_records import Facts
from gradsync.reports.exports.canvas import render
from gradsync.reports.exports.sheets import NotASheet

HEADER = (
    'Student,ID,SIS User ID,SIS Login ID,Section,"Training, part 1 (4711)",Other (12),Final Score'
)
DOWNLOADED = f"""{HEADER}
    Points Possible,,,,,10.0,5.0,(read only)
"Őry, Ödön",77,1000,oe1@example.org,"Tue, 10:00",,4.0,80
"Nobody, N.",78,1999,n@example.org,"Tue, 10:00",3.0,,
"Guest, G.",79,,p2@example.org,,,,
"""


def canvas(text):
    """Return (titles of the assignments, possible points, cells of each learner)."""
    [header, *rows] = csv.reader(io.StringIO(text, newline=""))
    assert "Student" in header[0]
    assert "ID" in header[1]
    assert re.search(r"SIS\s+User\s+ID", header[2])
    assert re.search(r"SIS\s+Login\s+ID", header[3])
    assert "Section" in header[4]  # the last column on the learner
    points = [row for row in rows if "Points Possible" in row[0]]
    learners = [row for row in rows if "Points Possible" not in row[0]]
    return header[5:], [row[5:] for row in points], learners


def test_canvas_reads_the_name_and_the_score_of_every_learner():
    titles, points, learners = canvas(render(CLASS).text)

    assert titles == ["Training, part 1"]
    assert points == [["10"]]
    assert [row[2:4] for row in learners][:2] == [
        ["1000", "p0@example.org"],
        ["1001", "p1@example.org"],
    ]
    assert [row[5] for row in learners][: len(NAMES)] == ["7.33"] * len(NAMES)
    assert [row[0] for row in learners][:2] == list(NAMES[:2])
    [stranger] = [row for row in learners if row[0] == f"'{STRANGER.submission}"]
    [missing] = [row for row in learners if row[2] == MISSING.submission]
    assert stranger[1:5] == ["", "", "", ""]
    assert missing[5] == ""


def test_the_row_of_possible_points_is_the_one_that_canvas_writes():
    assert render(CLASS).text.splitlines()[1] == "    Points Possible,,,,,10"


def test_no_cell_is_a_formula():
    cells = [cell for row in csv.reader(io.StringIO(render(CLASS).text)) for cell in row]

    assert "'=1+1" in cells
    assert [cell for cell in cells if cell[:1] in "=+-@" and cell] == []


def test_an_exported_gradebook_is_filled_in():
    sheet = render(CLASS, DOWNLOADED)

    titles, points, learners = canvas(sheet.text)
    assert titles == ["Training, part 1 (4711)", "Other (12)", "Final Score"]
    assert points == [["10.0", "5.0", "(read only)"]]
    assert [row[5] for row in learners] == ["7.33", "3.0", "7.33"]
    assert [row[6:] for row in learners] == [["4.0", "80"], ["", ""], ["", ""]]
    assert "Zoë\nNewline" in sheet.not_in_file


def test_the_only_assignment_is_filled_in_whatever_its_title():
    alone = DOWNLOADED.replace("Training, part 1 (4711)", "Homework (4711)").replace(
        ",Other (12)", ",Other"
    )

    _, _, learners = canvas(render(CLASS, alone).text)

    assert learners[0][5] == "7.33"


def test_an_earlier_export_is_filled_in():
    earlier = render(replace(CLASS, results=[replace(LATE, score=1.0)])).text

    _, _, learners = canvas(render(CLASS, earlier).text)

    assert [row[5] for row in learners] == ["6.33"]


def test_an_unclear_column_is_refused_with_a_list_of_columns():
    with pytest.raises(NotASheet, match="Training, part 1 and Other"):
        render(replace(CLASS, title="Elsewhere"), DOWNLOADED)


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "\x00", "Student\nx\n"])
def test_another_file_is_refused(text):
    with pytest.raises(NotASheet, match="not a gradebook that Canvas exported"):
        render(CLASS, text)


def test_the_id_of_a_download_finds_a_learner_and_fills_the_column():
    twins = [
        replace(LATE, submission=f"zhangwei {n}", person=None, score=s,
                facts=Facts("", "", key=n, platform="canvas"))
        for n, s in (("77", 1.0), ("78", 2.0))
    ]  # fmt: skip
    data = replace(CLASS, results=twins)

    _, _, new = canvas(render(data).text)
    _, _, learners = canvas(render(data, DOWNLOADED).text)

    assert [row[1] for row in new] == ["77", "78"]
    assert [row[5] for row in learners] == ["1", "2", ""]


def test_an_id_of_a_download_is_not_contradicted_by_that_of_a_roster():
    known = [replace(LATE, facts=Facts("", "", key="77", platform="canvas"))]

    _, _, [row] = canvas(render(replace(CLASS, results=known)).text)
    assert row[1:4] == ["77", "", ""]


@pytest.mark.parametrize(("key", "ids"), [("late@example.org", ["1999", ""]), ("77", ["", "1999"])])
def test_who_handed_in_nothing_gets_the_id_of_canvas_if_the_roster_has_these(key, ids):
    late = replace(LATE, facts=Facts("", "", key=key, platform="canvas"))
    late = replace(late, person=replace(late.person, id="late@example.org"))

    _, _, rows = canvas(render(replace(CLASS, results=(late, MISSING))).text)

    assert rows[1][1:3] == ids


def test_scores_are_scaled_to_the_points_of_the_assignment():
    sheet = render(CLASS, DOWNLOADED.replace("10.0,5.0", "100,5.0"))

    _, _, learners = canvas(sheet.text)
    assert learners[0][5] == "73.3"
    assert sheet.scaled == "The scores are scaled from 10 to 100 points, the file's maximum."


def test_a_gradebook_in_another_language_is_filled_in():
    german = DOWNLOADED.replace(
        "Student,ID,SIS User ID,SIS Login ID,Section",
        "Studierende;ID;SIS-Benutzer ID;SIS Anmelde ID;Abschnitt",
    )
    header, *rows = german.replace("Points Possible", "Mögliche Punkte").splitlines()
    cells = [next(csv.reader([row])) for row in rows]
    text = io.StringIO()
    csv.writer(text, delimiter=";").writerows(cells)

    sheet = render(CLASS, f"{header.replace(',', ';', 3)}\n{text.getvalue()}")

    assert [row[5] for row in csv.reader(io.StringIO(sheet.text), delimiter=";")][2] == "7.33"
