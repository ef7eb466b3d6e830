"""Downloads of a class in one zip, and zips that are one submission."""

import stat
import zipfile
from pathlib import Path

import pytest
from download_samples import METADATA, clone
from small_course import RIGHT, WRONG, write_course

from gradsync.grading.classes.entries import entries_at
from gradsync.grading.classes.tables import TableError
from gradsync.grading.imports import bulk
from gradsync.submission import SubmissionError

FILE = "phase1/template_trainer.py"


class Bulk:
    """A zip that staff name as the class."""

    def __init__(self, root):
        self.course = write_course(root / "course")
        self.path = root / "week3.zip"
        self.out = root / "out"

    def write(self, files):
        with zipfile.ZipFile(self.path, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)

    def pack(self, source):
        """Return the content of a learner's zip."""
        inner = self.path.with_name("inner.zip")
        with zipfile.ZipFile(inner, "w") as archive:
            archive.writestr(FILE, source)
        return inner.read_bytes()

    def entries(self):
        """Return each submission's files, notes and entry, by name."""
        with bulk.unpacked([self.path], self.course) as given:
            found = entries_at(list(given), self.course, self.out, "gradsync grade", None, given)
            read = {e.name: (e.submission(self.course, ["phase1"]), e) for e in found}
        assert not any(path.exists() for path in given if path != self.path)
        return read

    def sources(self):
        return {name: given.files[FILE].decode() for name, (given, _) in self.entries().items()}


@pytest.fixture
def download(tmp_path):
    return Bulk(tmp_path)


@pytest.mark.parametrize("top", ["", "submissions/"])
def test_canvas(download, top):
    download.write(
        {
            f"{top}lovelaceada_17_555_solution.zip": download.pack(RIGHT),
            f"{top}bob_LATE_18_556_template_trainer-1.py": WRONG,
        }
    )

    assert download.sources() == {"lovelaceada": RIGHT, "bob": WRONG}
    assert download.entries()["bob"][1].facts.notes == ("Canvas marks it as late",)


@pytest.mark.parametrize("top", ["", "Course-Week 3-99/"])
def test_moodle(download, top):
    download.write(
        {
            f"{top}Ada Lovelace_17_assignsubmission_file_/template_trainer.py": RIGHT,
            f"{top}Bob Müller_18_assignsubmission_file_/my.zip": download.pack(WRONG),
            f"{top}Bob Müller_18_assignsubmission_onlinetext_/onlinetext.html": "hello",
        }
    )

    assert download.sources() == {"Ada Lovelace": RIGHT, "Bob Müller": WRONG}


@pytest.mark.parametrize("top", ["", "assignment_5_export/"])
def test_gradescope(download, top):
    download.write(
        {
            f"{top}submission_metadata.yml": METADATA,
            f"{top}submission_101/template_trainer.py": RIGHT,
            f"{top}submission_102/{FILE}": WRONG,
        }
    )

    assert download.sources() == {"Ada Lovelace": RIGHT, "Bob": WRONG, "Cleo": WRONG}


def test_an_error_in_the_names_of_gradescope_names_the_zip(download):
    download.write({"submission_metadata.yml": "- a", "submission_101/template_trainer.py": RIGHT})

    with pytest.raises(TableError) as refused:
        download.entries()

    assert f"{download.path}/submission_metadata.yml can't be read" in str(refused.value)


@pytest.mark.parametrize("top", ["", "week3/"])
def test_folders_and_archives(download, top):
    download.write(
        {
            f"{top}ada/{FILE}": RIGHT,
            f"{top}bob.zip": download.pack(WRONG),
            "__MACOSX/ada/x": "x",
            f"{top}cleo/template_trainer.py": RIGHT,
        }
    )

    assert download.sources() == {"ada": RIGHT, "bob": WRONG, "cleo": RIGHT}


def test_clones_keep_the_times_of_their_commits(download, tmp_path):
    clones = tmp_path / "clones"
    for name in ("week3-ada", "week3-bob"):
        clone(clones / name)
    download.write(
        {
            str(path.relative_to(clones)): path.read_bytes()
            for path in clones.rglob("*")
            if path.is_file()
        }
    )

    assert all(entry.facts.handed_in for _, entry in download.entries().values())


def test_the_command_of_a_submission_selects_it_in_the_zip(download):
    download.write({f"ada/{FILE}": RIGHT, f"bo b/{FILE}": WRONG})

    commands = [entry.command for _, entry in download.entries().values()]

    assert commands == [
        f"gradsync grade --only ada {download.path}",
        f"gradsync grade --only 'bo b' {download.path}",
    ]


@pytest.mark.parametrize(
    "names",
    [
        ["template_trainer.py"],
        [FILE],
        [f"ada/{FILE}"],
        ["ada/template_trainer.py"],
        [f"ada/{FILE}", "ada/run_1_2_notes.py", "ada/a.zip", "ada/b.zip"],
        [FILE, "a.zip", "b.zip", f"old/{FILE}", f"older/{FILE}"],
        ["readme.txt"],
        ["solution.zip"],
        [],
    ],
)
def test_a_zip_with_one_submission_stays_one(download, names):
    download.write(dict.fromkeys(names, RIGHT))

    assert [*download.entries()] == ["week3"]


def test_a_broken_zip_is_one_submission_that_cannot_be_read(download):
    download.path.write_bytes(b"PK\3\4 nothing")

    assert "it can't be read as a zip" in download.entries()["week3"][0].notes[0]


@pytest.mark.parametrize("name", ["../evil.py", "/tmp/evil.py", "ada/../../evil.py", "ada/x\0y"])
def test_no_name_leads_out_of_the_folder(download, name):
    download.write({f"ada/{FILE}": RIGHT, f"bob/{FILE}": WRONG, "ada/123456": "x"})
    if "\0" in name:
        content = download.path.read_bytes().replace(b"ada/123456", b"ada/x\0xxxx")
        download.path.write_bytes(content)
    else:
        download.write({f"ada/{FILE}": RIGHT, f"bob/{FILE}": WRONG, name: "x"})

    with pytest.raises(SubmissionError, match=r"leads out of its folder\. Unpack it yourself"):
        download.entries()
    assert not Path("/tmp/evil.py").exists()


def test_links_are_refused_and_lead_nowhere(download):
    link = zipfile.ZipInfo(f"bob/{FILE}")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(download.path, "w") as archive:
        archive.writestr(f"ada/{FILE}", RIGHT)
        archive.writestr(link, "/etc/passwd")

    assert "is a link" in " ".join(download.entries()["bob"][0].notes)


def test_a_file_that_is_too_large_costs_only_its_own_submission(download):
    large = b"0" * 3 * 2**20
    download.write({f"ada/{FILE}": RIGHT, f"bob/{FILE}": large, "bob/model.pt": large})

    found = download.entries()
    assert found["ada"][0].files == {FILE: RIGHT.encode()}
    assert "has 3,145,728 bytes" in " ".join(found["bob"][0].notes)


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [("MAX_SIZE", 10, "the limit is 10 bytes"), ("MAX_ENTRIES", 1, "more than 1 files")],
)
def test_the_size_of_a_class_is_limited(download, monkeypatch, limit, value, message):
    download.write({f"ada/{FILE}": RIGHT, f"bob/{FILE}": WRONG})
    monkeypatch.setattr(bulk, limit, value)

    with pytest.raises(SubmissionError, match=message):
        download.entries()


def test_a_damaged_file_is_one_clear_error(download):
    download.write({f"ada/{FILE}": RIGHT, f"bob/{FILE}": WRONG})
    content = download.path.read_bytes()
    download.path.write_bytes(content.replace(RIGHT.encode(), b"x" * len(RIGHT.encode())))

    with pytest.raises(SubmissionError, match="can't be unpacked: Bad CRC-32"):
        download.entries()
