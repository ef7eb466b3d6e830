"""Reports for Canvas, Moodle and a mailbox, read as these systems read them."""

import io
import mailbox as mailboxes
import re
import tarfile
import zipfile
from dataclasses import replace

import nbformat
import pytest
from export_samples import CLASS, GRADED, MISSING

from gradsync.class_records import ExerciseResult, Facts, Override
from gradsync.exporting.feedback import canvas_feedback, mailbox, moodle_feedback
from gradsync.reports.exports.moodle import feedback


def page_of(result):
    return f"<p>The report of {result.submission}. From here on: Ödön</p>"


def class_of(*uploads, **more):
    """Return a class whose first learner has these uploads, and a person without any."""
    first = replace(GRADED[0], folder="a", facts=Facts("a", "a", uploads=uploads), **more)
    return replace(CLASS, results=(first, replace(GRADED[1], folder="b"), MISSING))


def files(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize("name", ["ada_17_555_work.zip", "LATE_anon_a1_555_work.tar.gz"])
def test_canvas_gets_a_file_with_the_name_and_the_format_of_the_upload(name):
    made = canvas_feedback(class_of("ada_17_500_old.zip", name), page_of)

    [(found, content)] = files(made.content).items()
    assert found == name
    if name.endswith(".zip"):
        assert files(content)["report.html"].decode() == page_of(GRADED[0])
    else:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            assert archive.getnames() == ["report.html"]
    assert made.left_out == (GRADED[1].submission,)


@pytest.mark.parametrize("name", ["template_trainer.py", "week1.ipynb"])
def test_canvas_gets_comments_for_a_python_file_or_a_notebook(name):
    made = canvas_feedback(class_of(f"ada_17_555_{name}"), page_of)

    [content] = files(made.content).values()
    if name == "week1.ipynb":
        content = nbformat.reads(content, 4).cells[0].source.encode()
    lines = content.decode().splitlines()
    assert lines[0] == "# 7.33 of 10 points"
    assert all(line.startswith("#") for line in lines)
    compile(content, "upload", "exec")


def test_canvas_takes_no_file_back_for_a_text():
    assert files(canvas_feedback(class_of("ada_17_text.html"), page_of).content) == {}


@pytest.mark.parametrize(
    ("upload", "path"),
    [
        ("Ada L_17_assignsubmission_file_", "Ada L_17_assignsubmission_file_/report.html"),
        ("Ada L_17_assignsubmission_file", "Ada L_17_assignsubmission_file/report.html"),
        ("Ada L_17_assignsubmission_file_my.zip", "Ada L_17_assignsubmission_file_report.html"),
    ],
)
def test_moodle_finds_the_learner_in_the_path(upload, path):
    [(found, content)] = files(moodle_feedback(class_of(upload), page_of).content).items()

    assert (found, content.decode()) == (path, page_of(GRADED[0]))
    _, number, kind, plugin = re.split("_", found.partition("/")[0], maxsplit=4)[:4]
    assert (number, kind, plugin) == ("17", "assignsubmission", "file")


def test_a_mailbox_has_a_message_with_the_report_for_each_address(tmp_path):
    every = tuple(replace(each, folder=each.submission) for each in GRADED)
    made = mailbox(replace(CLASS, results=every), page_of)
    (tmp_path / "mail.mbox").write_bytes(made.content)

    box = mailboxes.mbox(tmp_path / "mail.mbox", create=False)
    messages = [mailboxes.mboxMessage(message) for message in box]
    box.close()
    assert [message["To"] for message in messages] == [each.person.email for each in GRADED]
    assert messages[0]["Subject"] == "Training, part 1: 7.33 of 10 points"
    text, report = messages[0].get_payload()
    said = text.get_payload(decode=True).decode()
    assert said.startswith("Hello Ödön, Őry,")
    assert "Begin with evaluate (sum-not-mean): Every rank has the sum." in said
    assert "gradsync hint phase1/evaluate" in said
    assert report.get_payload(decode=True).decode().strip() == page_of(GRADED[0])


def test_who_has_a_score_but_handed_in_nothing_gets_a_message_without_a_report():
    """Such as the member of a group for whom another one handed in."""
    override = Override("7", "total", 8.0, "Group of a", "Kim")
    member = replace(MISSING, score=8.0, max_score=10.0, total=(override,))
    data = replace(CLASS, results=(member,))

    sent = mailbox(data, page_of)
    said = sent.content.decode()

    assert (sent.count, sent.left_out) == (1, ())
    assert "you have 8 of 10 points." in said
    assert "Kim set the points to 8: Group of a." in said
    assert "report" not in said
    assert canvas_feedback(data, page_of).left_out == (MISSING.person.label,)


def test_mail_and_comments_have_what_staff_wrote():
    override = Override("a", "phase1/evaluate", 3.0, "unclear", "Kim")
    exercises = (
        ExerciseResult("phase1/evaluate", 3.0, 3.33, (override,)),
        ExerciseResult("rubric/style", 0.0, 5.0),
    )
    first = replace(GRADED[0], folder="a", exercises=exercises, notes=("late", "no name"))
    said = mailbox(replace(CLASS, results=(first,)), page_of).content.decode()
    comment = feedback(first)

    assert "phase1: evaluate: 3 of 3.33. Kim set the points to 3: unclear." in said
    assert "rubric: style: 0 of 5. Not graded yet." in said
    assert "you have 7.33 of 10 points so far." in said
    assert comment.startswith("late. no name. Points: phase1: evaluate 3 of 3.33 (Kim set the ")


def test_who_has_no_address_is_listed():
    person = replace(GRADED[0].person, email="")
    alone = replace(CLASS, results=(replace(GRADED[0], folder="a", person=person),))

    assert mailbox(alone, page_of).left_out == (GRADED[0].submission,)
