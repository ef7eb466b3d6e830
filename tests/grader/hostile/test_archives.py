"""Hostile submissions: only the valid files are read, and the notes name the others."""

import os
import tempfile
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import folder_attacks
import pytest
import tar_attacks  # noqa: F401 - each module adds its attacks to ATTACKS
import zip_attacks  # noqa: F401
from archives import ATTACKS, HONEST, LOADER, OUTSIDE, SOLUTION, TRAINER

from gradsync.course.catalogue import find_course
from gradsync.submission import find_submissions, folders, read_submission

COURSE = find_course(Path(__file__).parent)
MOST_MEMORY = 32 * 2**20  # bytes, for any input
NOBODY = 65534


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a folder for the submission, next to a solution, where new files are noticed."""
    solution = tmp_path / OUTSIDE / "template_trainer.py"
    solution.parent.mkdir(parents=True)
    solution.write_bytes(SOLUTION)
    for name in ("class", "tmp", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "class"


def everything(root):
    """Return all paths below a folder, with the attributes that change on writing."""
    found = {}
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = os.path.join(folder, name)  # noqa: PTH118 - names may contain any bytes
            state = os.lstat(path)
            found[path] = (state.st_mode, state.st_size, state.st_mtime_ns)
    return found


@contextmanager
def memory():
    """Yield a list that gets the peak memory of the block, in bytes, when it ends."""
    peak = []
    tracemalloc.start()
    try:
        yield peak
        peak.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(one, id=one.name, marks=pytest.mark.slow if "_of_many_" in one.name else ())
        for one in ATTACKS
    ],
)
def test_only_files_that_count_are_read_and_notes_name_the_others(place, attack):
    ada = folder_attacks.laid_out(place).rename(place / "ada")
    path = attack.make(place)
    before = everything(place.parent)

    with memory() as peak:
        neighbours = find_submissions(place, COURSE)
        submission = read_submission(path, COURSE)

    assert submission.files == {name: HONEST[name] for name in attack.reads}
    assert any(attack.note in note for note in submission.notes), submission.notes
    assert all(note.isprintable() and len(note) < 1000 for note in submission.notes)
    assert len(submission.notes) < 20
    assert everything(place.parent) == before
    assert peak[0] < MOST_MEMORY
    assert neighbours == sorted([ada, path])
    assert read_submission(ada, COURSE).files == HONEST


def test_every_attack_has_a_description():
    assert [attack.name for attack in ATTACKS if not attack.make.__doc__] == []
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)


@pytest.mark.parametrize("exchange", ["link", "pipe"])
def test_a_file_that_is_replaced_after_the_check_is_not_read(place, monkeypatch, exchange):
    eve = folder_attacks.laid_out(place)
    real_open = os.open

    def open_late(name, flags, **options):
        if name == "template_trainer.py":
            (eve / TRAINER).unlink()
            if exchange == "link":
                (eve / TRAINER).symlink_to(place.parent / OUTSIDE / "template_trainer.py")
            else:
                os.mkfifo(eve / TRAINER)
        return real_open(name, flags, **options)

    monkeypatch.setattr(folders.os, "open", open_late)
    submission = read_submission(eve, COURSE)

    assert set(submission.files) == {LOADER}
    assert any(note.startswith(f"refused: {TRAINER}") for note in submission.notes)


@contextmanager
def as_nobody():
    """Give up root's right to read everything while the block runs."""
    was = os.geteuid()
    os.seteuid(NOBODY if was == 0 else was)
    try:
        yield
    finally:
        os.seteuid(was)


@pytest.fixture
def public():
    """Return a folder that every user may read, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize(
    ("closed", "note"),
    [
        (TRAINER, f"refused: {TRAINER} can't be read: Permission denied"),
        ("phase1", "refused: phase1 can't be read: Permission denied"),
        (".", "unreadable: eve can't be read: Permission denied"),
    ],
)
def test_notes_name_unreadable_files(public, closed, note):
    eve = folder_attacks.laid_out(public)
    mode = (eve / closed).stat().st_mode
    (eve / closed).chmod(0)
    try:
        with as_nobody():
            found = find_submissions(eve, COURSE)
            submission = read_submission(eve, COURSE)
    finally:
        (eve / closed).chmod(mode)

    assert found == [eve]
    assert note in submission.notes
