"""Hostile hand-ins: only what counts is read, the rest is named, and nothing else happens."""

import os
import tempfile
import tracemalloc
from contextlib import contextmanager
from pathlib import Path

import folder_attacks
import pytest
import tar_attacks  # noqa: F401 - each adds its own to ATTACKS
import zip_attacks  # noqa: F401
from archives import ATTACKS, HONEST, LOADER, OUTSIDE, SOLUTION, TRAINER

from gradsync.course import find_course
from gradsync.submission import find_submissions, folders, read_submission

COURSE = find_course(Path(__file__).parent)
MOST_MEMORY = 32 * 2**20  # bytes, whatever comes
NOBODY = 65534


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a folder for the submission, beside a solution; all that is written lies around it."""
    solution = tmp_path / OUTSIDE / "template_trainer.py"
    solution.parent.mkdir(parents=True)
    solution.write_bytes(SOLUTION)
    for name in ("class", "tmp", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "class"


def everything(root):
    """Return all that lies below a folder, with what changes when it is written to."""
    found = {}
    for folder, names, files in os.walk(root):
        for name in (*names, *files):
            path = os.path.join(folder, name)  # noqa: PTH118 - names may be of any bytes
            state = os.lstat(path)
            found[path] = (state.st_mode, state.st_size, state.st_mtime_ns)
    return found


@contextmanager
def memory():
    """Return the most bytes that were held at once, in a list, once the block has ended."""
    peak = []
    tracemalloc.start()
    try:
        yield peak
        peak.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_only_what_counts_is_read_and_the_rest_is_named(place, attack):
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


def test_every_attack_says_what_it_tries():
    assert [attack.name for attack in ATTACKS if not attack.make.__doc__] == []
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)


@pytest.mark.parametrize("exchange", ["link", "pipe"])
def test_a_file_that_is_exchanged_after_it_was_looked_at_is_not_read(place, monkeypatch, exchange):
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
    """Return a folder that every user may look into, unlike pytest's."""
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
def test_what_may_not_be_read_is_named(public, closed, note):
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
