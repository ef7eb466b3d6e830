"""The offline worksheet, read as Moodle's importer does (assignfeedback_offline)."""

import csv
import io
from dataclasses import replace

import pytest
from export_samples import CLASS, GRADED, LATE, NAMES, UNREADABLE

from gradsync.class_records import Facts
from gradsync.reports.exports.moodle import render
from gradsync.reports.exports.sheets import NotASheet

HEADER = (
    'Identifier,"Full name","Email address",Status,Grade,"Maximum Grade","Grade can be changed",'
    '"Last modified (submission)","Last modified (grade)","Feedback comments"'
)
DATES = '"Monday, 2 November 2026","Tuesday, 3 November 2026"'
DOWNLOADED = f"""{HEADER}
"Participant 5501","Ödön, Őry",p0@example.org,"Submitted for grading",,10.00,Yes,{DATES},
"Participant 5502","Ann ""Annie"" O'Neil",,"Submitted for grading",5.00,10.00,Yes,-,-,"by hand"
"Participant 5503","Somebody Else",x@example.org,"No submission",,10.00,Yes,-,-,
"""


def moodle(text):
    """Return {number of the learner: (grade, when it was changed, comment)}."""
    [header, *rows] = csv.reader(io.StringIO(text, newline=""))
    where = {name: header.index(name) for name in ("Grade", "Identifier", "Last modified (grade)")}
    comment = header.index("Feedback comments")
    return {
        row[where["Identifier"]][len("Participant ") :]: (
            row[where["Grade"]],
            row[where["Last modified (grade)"]],
            row[comment],
        )
        for row in rows
    }


def test_moodle_reads_the_grade_of_everybody_with_a_number():
    read = moodle(render(CLASS).text)

    assert [read[str(1000 + number)][0] for number in range(len(NAMES))] == ["7.33"] * len(NAMES)
    assert read["1999"][0] == ""


def test_a_comment_says_where_points_are_missing():
    _, _, comment = moodle(render(CLASS).text)["1007"]

    assert comment == (
        "Points lost by lateness: 1 day, 1 point. "
        "Points: phase1: evaluate 2.33 of 3.33; phase2: ring 0 of 1.67. "
        "Begin with evaluate (sum-not-mean): Every rank has the sum. "
        "For a hint: gradsync hint phase1/evaluate"
    )


def test_names_keep_their_commas_quotes_and_umlauts_and_no_cell_is_a_formula():
    rows = list(csv.reader(io.StringIO(render(CLASS).text)))

    assert [row[1] for row in rows[1:4]] == [*NAMES[:2], "'=1+1"]
    assert [cell for row in rows for cell in row if cell[:1] in "=+@" and cell] == []


def test_a_downloaded_worksheet_is_filled_in():
    sheet = render(replace(CLASS, results=GRADED), DOWNLOADED)

    read = moodle(sheet.text)
    assert read["5501"][:2] == ("7.33", "Tuesday, 3 November 2026")
    assert read["5502"][0] == "7.33"  # found by the name
    assert read["5503"] == ("", "-", "")
    assert "=1+1" in sheet.not_in_file


GERMAN = """ID;"Vollständiger Name";E-Mail-Adresse;Status;Bewertung;Bestwertung;\
"Bewertung kann geändert werden";"Zuletzt geändert (Abgabe)";"Zuletzt geändert (Bewertung)";\
"Feedback als Kommentar"
Teilnehmer/in5501;"Ödön, Őry";p0@example.org;"Zur Bewertung abgegeben";;100,00;Ja;-;\
"Dienstag, 3. November 2026, 09:30";
Teilnehmer/in5503;"Somebody Else";x@example.org;-;50,00;100,00;Ja;-;-;
"""


def test_a_worksheet_in_another_language_with_semicolons_is_filled_in_and_scaled():
    sheet = render(replace(CLASS, results=GRADED), GERMAN)

    [header, ada, other] = csv.reader(io.StringIO(sheet.text), delimiter=";")
    assert header[4:6] == ["Bewertung", "Bestwertung"]
    assert ada[4] == "73,3"
    assert ada[8] == "Dienstag, 3. November 2026, 09:30"
    assert ada[9].startswith("Points: phase1: evaluate")
    assert other[4:] == ["50,00", "100,00", "Ja", "-", "-", ""]
    assert sheet.scaled == "The scores are scaled from 10 to 100 points, the file's maximum."


def test_people_with_one_name_are_told_apart_by_moodles_number():
    twins = [
        replace(GRADED[0], submission=f"Wei Zhang {n}", person=None, score=score,
                facts=Facts("", "", key=n, platform="moodle"))
        for n, score in (("31", 1.0), ("32", 2.0))
    ]  # fmt: skip
    rows = "".join(f'"Participant {n}","Wei Zhang",,,,10.00,Yes,-,-,\n' for n in ("32", "31"))

    read = moodle(render(replace(CLASS, results=twins), f"{HEADER}\n{rows}").text)

    assert {number: cells[0] for number, cells in read.items()} == {"32": "2", "31": "1"}


def test_a_roster_id_is_not_taken_for_moodles_number():
    other = replace(GRADED[0], person=replace(GRADED[0].person, id="5503", email="", name="Q"))

    sheet = render(replace(CLASS, results=[other]), DOWNLOADED.replace("Ödön, Őry", "Z"))

    assert moodle(sheet.text)["5503"][0] == ""


def test_two_people_with_one_name_are_not_mixed_up():
    twins = [
        replace(GRADED[0], submission="a", person=replace(GRADED[0].person, id="1", email="")),
        replace(LATE, submission="b", person=replace(GRADED[0].person, id="2", email="")),
    ]
    both = DOWNLOADED + DOWNLOADED.splitlines()[1].replace("5501", "5509") + "\n"

    sheet = render(replace(CLASS, results=twins), both)

    assert sheet.not_in_file == ("a", "b")


def test_another_file_is_refused():
    with pytest.raises(NotASheet, match=r"not a worksheet of Moodle.*no identifiers"):
        render(CLASS, "Name,Points\nAda,3\n")


def test_the_comment_on_an_unreadable_submission_says_it_once():
    alone = replace(CLASS, results=(UNREADABLE,))

    comments = [comment for _, _, comment in moodle(render(alone).text).values()]
    assert comments == ["Nothing could be graded. It is not a zip."]
