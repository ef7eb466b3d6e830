"""Messages on files that are not Python source, and on entries that are not files."""

import pytest
from small_course import PLAIN_SUITE, RIGHT, write_course

from gradsync.grading.grade import grade
from gradsync.submission import read_submission
from gradsync.submission.sources import source_flaw

TRAINER = "phase1/template_trainer.py"
UMLAUT = "# für alle\n"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_utf_16_is_refused_with_advice(encoding):
    flaw = source_flaw((RIGHT + UMLAUT).encode(encoding))

    assert flaw.startswith("is saved as UTF-16")
    assert "save it as UTF-8" in flaw


def test_a_byte_of_another_encoding_is_shown_with_its_line():
    assert "The first byte that can't be decoded is 0xfc (ü in Latin-1) in line 1" in (
        source_flaw(UMLAUT.encode("latin-1"))
    )
    assert "in line 13" in source_flaw(b"x = 1\n" * 12 + UMLAUT.encode("latin-1"))


@pytest.mark.parametrize("source", [b"", b"\n\n", b" \t\r\n"])
def test_an_empty_file_is_refused(source):
    assert source_flaw(source).startswith("is empty")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_utf_8_is_accepted_with_or_without_a_byte_order_mark(encoding):
    assert source_flaw((RIGHT + UMLAUT).encode(encoding)) == ""


def no_text(path):
    path.write_text(RIGHT, encoding="utf-16")


def folder(path):
    path.mkdir()


def link(path):
    path.with_name("mine.py").write_text(RIGHT)
    path.symlink_to("mine.py")


def absent(path):
    path.with_name("notes.txt").write_text("")


@pytest.mark.parametrize(
    ("put", "said"),
    [
        (no_text, f"{TRAINER} is saved as UTF-16"),
        (folder, f"{TRAINER} is a folder"),
        (link, f"{TRAINER} is a link: replace it by the file that it points to"),
        (absent, f"{TRAINER} is not in the submission"),
    ],
)
def test_a_refused_entry_is_named(tmp_path, put, said):
    course = write_course(tmp_path / "course", PLAIN_SUITE)
    (tmp_path / "ada" / "phase1").mkdir(parents=True)
    put(tmp_path / "ada" / TRAINER)
    report = grade(read_submission(tmp_path / "ada", course), course, phases=["phase1"], seed=1)

    assert {verdict.status for verdict in report.verdicts} == {"missing"}
    assert all(verdict.message.startswith(said) for verdict in report.verdicts)
