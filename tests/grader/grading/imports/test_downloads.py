"""Submissions in downloads of Canvas, Moodle and Gradescope, and in cloned repositories."""

import zipfile
from datetime import datetime, timezone

import pytest
from download_samples import METADATA, clone, git
from small_course import RIGHT, WRONG, write_course, write_submission

from gradsync.grading.classes.entries import entries_at, only_of
from gradsync.grading.classes.tables import TableError
from gradsync.grading.imports import clones
from gradsync.submission import SubmissionError

FILE = "phase1/template_trainer.py"


class Download:
    """A folder in which a download is unpacked."""

    def __init__(self, root):
        self.course = write_course(root / "course")
        self.folder = root / "download"
        self.folder.mkdir()

    def zip(self, name, source=RIGHT, folder=None):
        with zipfile.ZipFile((folder or self.folder) / name, "w") as archive:
            archive.writestr(FILE, source)

    def entries(self, *folders, keep=None):
        paths = folders or (self.folder,)
        return entries_at(paths, self.course, self.folder.with_name("out"), "gradsync grade", keep)

    def sources(self, *folders, keep=None):
        """Return the source of each submission's file by name."""
        read = {
            e.name: e.submission(self.course, ["phase1"]) for e in self.entries(*folders, keep=keep)
        }
        return {name: given.files[FILE].decode() for name, given in read.items()}


@pytest.fixture
def download(tmp_path):
    return Download(tmp_path)


def test_canvas_names_the_learner_and_the_user(download):
    download.zip("lovelaceada_17_555_solution.zip")
    download.zip("bob_LATE_18_556_my_solution-2.zip", WRONG)

    ada, bob = sorted(download.entries(), key=lambda e: e.name, reverse=True)
    assert (ada.name, ada.facts.names, ada.facts.notes) == (
        "lovelaceada",
        ("17", "lovelaceada"),
        (),
    )
    assert (bob.name, bob.facts.notes) == ("bob", ("Canvas marks it as late",))
    assert download.sources() == {"lovelaceada": RIGHT, "bob": WRONG}


def test_files_of_one_canvas_user_are_one_submission_without_canvas_numbers(download):
    (download.folder / "ada_17_555_notes.txt").write_text("hello")
    (download.folder / "ada_17_556_template_trainer-1.py").write_text(RIGHT)

    assert download.sources() == {"ada": RIGHT}
    assert download.entries()[0].command == f"gradsync grade {download.folder}"


def test_the_later_upload_of_a_file_counts_and_is_named(download):
    (download.folder / "ada_17_555_template_trainer.py").write_text(WRONG)
    (download.folder / "ada_17_556_template_trainer-1.py").write_text(RIGHT)

    [entry] = download.entries()
    assert download.sources() == {"ada": RIGHT}
    assert entry.submission(download.course, ["phase1"]).notes == (
        f"assumed: upload 556/template_trainer.py counts as {FILE}, and not template_trainer.py",
    )


def test_the_command_of_a_submission_keeps_its_name_and_time(download):
    """Graded by its own path, it would be called submission_101, and would not be late."""
    write_submission(download.folder / "submission_101")
    write_submission(download.folder / "submission_102", WRONG)
    (download.folder / "submission_metadata.yml").write_text(METADATA)

    commands = [entry.command for entry in download.entries()]

    assert commands == [
        f"gradsync grade --only {name} {download.folder}"
        for name in ("'Ada Lovelace'", "Bob", "Cleo")
    ]


def test_the_last_of_several_archives_in_canvas_counts(download):
    download.zip("ada_17_5001_second.zip")
    download.zip("ada_17_5006_third.zip")
    download.zip("ada_17_5010_second-1.zip", WRONG)

    [entry] = download.entries()
    assert download.sources() == {"ada": WRONG}
    assert entry.submission(download.course, ["phase1"]).notes == (
        f"assumed: second-1/{FILE} counts as {FILE}, and not third/{FILE} and second/{FILE}",
    )


@pytest.mark.parametrize(
    "form", ["phase-{}.zip", "phase{}.zip", "Phase {}-1.zip", "my_phase_{}.zip"]
)
@pytest.mark.parametrize("loose", [False, True])
def test_archives_of_one_canvas_user_are_one_submission(download, form, loose):
    """Canvas's own numbers look like the numbers of phases."""
    write_course(download.course.root, phase="phase2")
    top = "my_" if "my" in form else ""
    for number, source in enumerate((RIGHT, WRONG), 1):
        name = "template_trainer.py" if loose and not top else f"phase{number}/template_trainer.py"
        with zipfile.ZipFile(
            download.folder / f"ada_17_55{number}_{form.format(number)}", "w"
        ) as z:
            z.writestr(name, source)

    [entry] = download.entries()
    read = entry.submission(download.course, ["phase1", "phase2"])
    assert read.files == {
        "phase1/template_trainer.py": RIGHT.encode(),
        "phase2/template_trainer.py": WRONG.encode(),
    }
    assert all(note.startswith("assumed: ") for note in read.notes)


def test_a_text_of_canvas_is_quoted(download):
    page = "<html><title>t</title><body><p>See <a href='https://git.x/ada'>my repository</a></p>"
    (download.folder / "ada_LATE_17_text.html").write_text(page)
    download.zip("bob_18_556_solution.zip")

    ada, _ = download.entries()
    assert ada.facts.notes == (
        "Canvas marks it as late",
        'a text was handed in (ada_LATE_17_text.html): "See https://git.x/ada my repository"',
    )
    [note] = ada.submission(download.course, ["phase1"]).notes
    assert note.startswith("unreadable: ada has none of the course's files: it has text.html")


def test_a_text_with_code_is_called_that(download):
    page = "<pre>def double(number):\n    return 2</pre>"
    (download.folder / "ada_17_text.html").write_text(page)

    [ada] = download.entries()
    assert ada.facts.notes == (
        'a text with code was handed in (ada_17_text.html): "def double(number): return 2"',
    )


def test_anonymous_names_of_canvas(download):
    download.zip("anon_a1B2c_555_solution.zip")
    download.zip("LATE_anon_x9Y8z_556_solution.zip", WRONG)

    assert download.sources() == {"anon_a1B2c": RIGHT, "anon_x9Y8z": WRONG}
    assert [e.facts.notes for e in download.entries()] == [(), ("Canvas marks it as late",)]


def test_a_text_of_moodle_is_quoted_beside_files_and_alone(download):
    for name in ("Ada_17", "Bob_18"):
        folder = download.folder / f"{name}_assignsubmission_onlinetext"
        folder.mkdir()
        (folder / "onlinetext.html").write_text("<p>Please be&nbsp;kind.</p>")
    write_submission(download.folder / "Ada_17_assignsubmission_file")

    ada, bob = download.entries()
    quoted = ('a text was handed in (onlinetext.html): "Please be kind."',)
    assert (ada.facts.notes, bob.facts.notes) == (quoted, quoted)
    assert ada.submission(download.course, ["phase1"]).notes == ()
    assert bob.submission(download.course, ["phase1"]).notes[0].startswith("unreadable: ")


@pytest.mark.parametrize("folder", ["Ada_17_assignsubmission_file_", "ada"])
def test_several_archives_in_a_folder_make_it_unreadable(download, folder):
    (download.folder / folder).mkdir()
    for name in ("first.zip", "second.zip"):
        download.zip(name, RIGHT + f"# {name}", folder=download.folder / folder)

    [entry] = download.entries()
    [note] = entry.submission(download.course, ["phase1"]).notes
    assert "the course's files are in several folders (first/, second/)" in note


def test_canvas_learners_with_one_name_get_their_ids(download):
    download.zip("ada_17_555_solution.zip")
    download.zip("ada_18_556_solution.zip", WRONG)

    assert download.sources() == {"ada 17": RIGHT, "ada 18": WRONG}
    assert download.entries()[0].facts.names == ("17", "ada 17", "ada")


def test_moodle_has_a_folder_for_each_learner(download):
    write_submission(download.folder / "Ada Lovelace_17_assignsubmission_file_")
    (download.folder / "Bob van Dyk_18_assignsubmission_file_").mkdir()
    download.zip("my.zip", WRONG, download.folder / "Bob van Dyk_18_assignsubmission_file_")
    (download.folder / "Ada Lovelace_17_assignsubmission_onlinetext_").mkdir()

    assert download.sources() == {"Ada Lovelace": RIGHT, "Bob van Dyk": WRONG}
    assert download.entries()[0].facts.names == ("17", "Ada Lovelace")


def test_moodle_without_folders_has_the_same_names(download):
    download.zip("Ada Lovelace_17_assignsubmission_file_my_work.zip")

    assert download.sources() == {"Ada Lovelace": RIGHT}


def test_gradescope_names_people_and_times_and_counts_a_group_for_each_member(download):
    write_submission(download.folder / "submission_101")
    write_submission(download.folder / "submission_102", WRONG)
    (download.folder / "submission_metadata.yml").write_text(METADATA)

    ada, bob, cleo = download.entries()
    assert download.sources() == {"Ada Lovelace": RIGHT, "Bob": WRONG, "Cleo": WRONG}
    assert ada.facts.names == ("17", "ada@x.org", "Ada Lovelace")
    assert ada.facts.handed_in == datetime(2026, 10, 30, 20, 53, 49, 186494, timezone.utc)
    assert bob.facts.notes == cleo.facts.notes == ("handed in by Bob and Cleo",)


@pytest.mark.parametrize(
    "text", ["", "- a", "x: [", "submission_101: 3", "!!python/object:os.system {}"]
)
def test_a_damaged_file_of_names_is_one_clear_error(download, text):
    write_submission(download.folder / "submission_101")
    (download.folder / "submission_metadata.yml").write_text(text)

    with pytest.raises(TableError, match="can't be read as Gradescope's file of names"):
        download.entries()


@pytest.mark.parametrize("packed", [False, True])
def test_a_clone_has_the_time_of_its_commit_and_its_name_without_the_common_start(download, packed):
    for name in ("week3-ada", "week3-bob"):
        clone(download.folder / name)
        if packed:
            git(download.folder / name, "gc", "--quiet")

    ada, bob = download.entries()
    assert ada.facts.handed_in == datetime(2026, 10, 30, 10, tzinfo=timezone.utc)
    assert (ada.name, ada.facts.names) == ("week3-ada", ("week3-ada", "ada"))
    assert (bob.name, bob.facts.names) == ("week3-bob", ("week3-bob", "bob"))


def test_reading_a_clone_runs_no_program_from_its_settings(download, tmp_path):
    folder = clone(download.folder / "ada")
    clone(download.folder / "bob")
    proof = tmp_path / "it-ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {proof}\n")
    program.chmod(0o755)
    for key in (
        "core.fsmonitor",
        "core.pager",
        "gpg.program",
        "core.sshCommand",
        "log.showSignature",
    ):
        git(folder, "config", key, "true" if key == "log.showSignature" else str(program))
    for hook in ("post-checkout", "pre-commit", "post-index-change"):
        (folder / ".git/hooks" / hook).write_text(program.read_text())
        (folder / ".git/hooks" / hook).chmod(0o755)

    assert clones.commit_time(folder) is not None
    assert not proof.exists()


@pytest.mark.parametrize(
    "head",
    ["", "ref: refs/../../../etc/passwd", "ref: refs/heads/none", "f" * 40, "--help", "x" * 9999],
)
def test_a_damaged_clone_has_no_time(download, head):
    folder = clone(download.folder / "ada")
    (folder / ".git" / "HEAD").write_text(head)

    assert clones.commit_time(folder) is None


def two_downloads(download, tmp_path):
    folders = [tmp_path / name for name in ("first", "second")]
    for folder, source in zip(folders, (RIGHT, WRONG), strict=True):
        folder.mkdir()
        download.zip(f"ada_17_{55 + folders.index(folder)}_x.zip", source, folder)
    return folders


@pytest.mark.parametrize("keep", [None, "last"])
def test_the_last_attempt_counts_by_default(download, tmp_path, keep):
    first, second = two_downloads(download, tmp_path)

    [entry] = download.entries(second, first, keep=keep)
    assert download.sources(second, first, keep=keep) == {"ada": WRONG}
    assert (entry.facts.attempt, entry.facts.attempts) == (2, 2)


def test_all_attempts_are_graded_if_the_best_one_counts(download, tmp_path):
    folders = two_downloads(download, tmp_path)

    entries = download.entries(*folders, keep="best")
    assert download.sources(*folders, keep="best") == {
        "ada (attempt 1)": RIGHT,
        "ada (attempt 2)": WRONG,
    }
    assert {entry.facts.learner for entry in entries} == {"ada"}


def test_plain_submissions_with_one_name_are_attempts_only_if_asked_for(download, tmp_path):
    for name, source in (("week1", RIGHT), ("week2", WRONG)):
        write_submission(tmp_path / name / "ada", source)
    folders = (tmp_path / "week1", tmp_path / "week2")

    assert download.sources(*folders) == {"ada": RIGHT, "ada-2": WRONG}
    assert download.sources(*folders, keep="last") == {"ada": WRONG}


def test_only_selects_a_learner_with_all_attempts(download):
    for name, source in (("ada_17_555_a.zip", WRONG), ("bob_18_556_b.zip", RIGHT)):
        download.zip(name, source)
    entries = download.entries()

    assert [entry.name for entry in only_of(entries, ["bob"], download.folder)] == ["bob"]
    assert only_of(entries, [], download.folder) == entries
    with pytest.raises(SubmissionError, match="mean bob"):
        only_of(entries, ["ada", "bobb"], download.folder)


ROSTER = """id,name,email
1003,Ada Lovelace,al@x.org
1004,Bob Ross,bob@x.org
1010,Cleo,cleo@x.org
1020,Jürgen Müller,
1021,Jürgen Müller,
"""


@pytest.fixture
def roster(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text(ROSTER, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["17", "1003", "AL@x.org", "Lovelace, Ada", "lovelaceada"])
def test_only_accepts_a_learners_names_in_the_download_or_the_roster(download, roster, name):
    for file in ("lovelaceada_17_555_a.zip", "bob_18_556_b.zip"):
        download.zip(file)

    assert [
        e.name
        for e in only_of(download.entries(), [name], download.folder.with_name("out"), roster)
    ] == ["lovelaceada"]


def test_only_accepts_a_name_as_a_spreadsheet_shows_it(download):
    for name in ("=1+1", "bob"):
        write_submission(download.folder / name)

    assert [e.name for e in only_of(download.entries(), ["'=1+1"], download.folder)] == ["=1+1"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ada", "2 learners have this name. Choose ada 17 or ada 18."),
        ("1010", "Cleo (1010) is on the roster, but not in these submissions."),
        (
            "1021",
            "Jürgen Müller (1021) is on the roster, but not in these submissions. Did you mean "
            "müllerjürgen?",
        ),
        (
            "adda 18",
            "no submission has this name. Did you mean ada 18? Use a name from gradebook.csv, "
            "from the download or from the roster.",
        ),
    ],
)
def test_only_explains_why_a_name_selects_nobody(download, roster, name, reason):
    for file in ("ada_17_555_a.zip", "ada_18_556_a.zip", "müllerjürgen_19_557_b.zip"):
        download.zip(file)

    with pytest.raises(SubmissionError) as refused:
        only_of(download.entries(), [name], download.folder.with_name("out"), roster)

    assert str(refused.value) == f"--only {name}: {reason}"


def test_learners_whose_names_were_numbered_are_selected_among_all_paths(tmp_path):
    course = write_course(tmp_path / "course")
    paths = [tmp_path / week / "ada" for week in ("one", "two")]
    for path in paths:
        write_submission(path)

    first, second = entries_at(paths, course, tmp_path / "out", "gradsync grade")

    assert first.command == f"gradsync grade {paths[0]}"
    assert second.command == f"gradsync grade --only ada-2 {paths[0]} {paths[1]}"
