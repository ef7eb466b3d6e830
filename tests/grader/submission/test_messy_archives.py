"""Archives as students' machines make them: read as a person would, or refused with a reason."""

import bz2
import io
import tarfile
import zipfile

import pytest
from class_downloads import (
    BOTH,
    NOTEBOOK,
    ONE,
    RIGHT,
    TWO,
    WRONG,
    inside,
    tarred,
    two_phases,
    zipped,
)

from gradsync.grading.classes.entries import entries_at

SAFE = zipfile.ZipInfo
FILE = "template_trainer.py"


def named_in(encoding):
    """Return a kind of entry whose name is in an encoding that the zip does not tell."""

    class Named(SAFE):
        def _encodeFilenameFlags(self):  # noqa: N802 - zipfile's name
            return self.filename.encode(encoding), self.flag_bits & ~0x800

    return Named


def encrypted(files):
    data = bytearray(zipped(files))
    for mark, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = data.find(mark)
        while at >= 0:
            data[at + flags] |= 1
            at = data.find(mark, at + 4)
    return bytes(data)


def linked(files, name, target):
    buffer = io.BytesIO(zipped(files))
    with zipfile.ZipFile(buffer, "a") as archive:
        link = SAFE(name)
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, target)
    return buffer.getvalue()


def xz(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
        for name in files:
            archive.addfile(tarfile.TarInfo(name))
    return buffer.getvalue()


def renamed(one, two):
    return zipped({one: RIGHT, two: RIGHT})


RAR, SEVEN = b"Rar!\x1a\x07\x01\0 x", b"7z\xbc\xaf\x27\x1c\0\4 x"
NESTED = zipped({"hw.zip": zipped(BOTH)})
REPACK = "Pack the files themselves as one .zip"
LATIN = f"# Müller\n{RIGHT}".encode("latin-1")
PAGE = "<!DOCTYPE html>\n<title>Sign in</title>\n"
CRLF = RIGHT.replace("\n", "\r\n").encode("utf-8-sig")
WINDOWS = {f"C:\\Users\\ada\\{name}".replace("/", "\\"): text for name, text in BOTH.items()}
# What was uploaded, its name and content; and a part of the notes, "" if there are none.
READ = {
    "names of an IBM PC": ("w.zip", zipped(inside("Lösung"), named_in("cp437")), ""),
    "Chinese names": ("w.zip", zipped(inside("作业一"), named_in("gbk")), ""),
    "Latin-1 names": ("w.zip", zipped(inside("Lösung"), named_in("latin-1")), ""),
    "decomposed names": ("w.zip", zipped(inside("Lo\u0308sung")), ""),
    "Windows' own files": ("w.zip", zipped({**BOTH, "phase1/desktop.ini": b"x"}), ""),
    "a byte order mark": ("w.zip", zipped({ONE: CRLF, TWO: RIGHT.replace("\n", "\r")}), ""),
    "a tar named zip": ("w.zip", tarred(BOTH), ""),
    "a zip named tar": ("w.tar.gz", zipped(BOTH), ""),
    "solutions.zip": ("solutions.zip", zipped(BOTH), ""),
    "tests.zip": ("tests.zip", zipped(BOTH), ""),
    "all of its path": ("w.zip", zipped(inside("home/ada/Documents/uni/ddp")), ""),
    "a folder for each phase": (
        "w.zip",
        renamed(f"Phase1-solution/phase1/{FILE}", f"Phase2-solution/phase2/{FILE}"),
        "",
    ),
    "phase1_solution": (
        "w.zip",
        renamed(f"phase1_solution/{FILE}", f"phase2_solution/{FILE}"),
        f"assumed: w/phase2_solution/{FILE} is {TWO}",
    ),
    "a blank": (
        "w.zip",
        renamed(f"phase 1/{FILE}", f"Phase 2/{FILE}"),
        f"assumed: w/phase 1/{FILE} is {ONE}",
    ),
    "hidden extensions": (
        "w.zip",
        renamed(f"{ONE}.txt", TWO),
        f"assumed: w/{ONE}.txt is {ONE}",
    ),
    "a hyphen and capitals": (
        "w.zip",
        renamed("phase1/Template-Trainer.PY", TWO),
        f"assumed: w/phase1/Template-Trainer.PY is {ONE}",
    ),
    "a hidden extension in a tar": (
        "w.tar.gz",
        tarred({ONE: RIGHT, f"phase2/{FILE.upper()}.txt": RIGHT}),
        f"assumed: w/phase2/{FILE.upper()}.txt is {TWO}",
    ),
    "names that differ in case": (
        "w.zip",
        zipped({**BOTH, "phase1/Template_Trainer.py": WRONG}),
        f"w/{ONE} counts as {ONE}, and not w/phase1/Template_Trainer.py",
    ),
}
PARTS = {
    "Latin-1": ("w.zip", zipped({ONE: LATIN, TWO: RIGHT}), "(ü in Latin-1) in line 1"),
    "a link": ("w.zip", linked({TWO: RIGHT}, ONE, "../a.py"), f"refused: w/{ONE} is a link"),
    "a blank at the end": ("w.zip", renamed(f"{ONE} ", TWO), f"w/{ONE} . If these are"),
    "a notebook": ("w.zip", zipped({"phase1/a.ipynb": "{}", TWO: RIGHT}), "`gradsync nbgrade`"),
    "another name": ("w.zip", renamed("phase1/my_trainer_v2.py", TWO), "give them the course's"),
    "a web page": ("w.zip", zipped({ONE: PAGE, TWO: RIGHT}), "not Python source, but a web page"),
    "a notebook named py": ("w.zip", zipped({ONE: NOTEBOOK, TWO: RIGHT}), "but a notebook: copy"),
    "RTF": ("w.zip", zipped({ONE: f"{{\\rtf1 {RIGHT}", TWO: RIGHT}), "but formatted text (RTF)"),
    "Word": ("w.zip", zipped({ONE: NESTED, TWO: RIGHT}), "but an archive or a Word document"),
    "a packed phase": ("w.zip", zipped({"phase1.zip": zipped(BOTH), TWO: RIGHT}), REPACK),
}
UNREAD = {
    "RAR": ("w.rar", RAR, REPACK),
    "RAR named zip": ("w.zip", RAR, "it is a RAR archive: pack the files again as a .zip"),
    "Zstandard named zip": ("w.zip", b"\x28\xb5\x2f\xfd\0", "it is a Zstandard archive: pack"),
    "bzip2 named tar.gz": ("w.tar.gz", bz2.compress(b"x"), "it is a bzip2 archive: pack"),
    "a page named zip": ("w.zip", PAGE.encode(), "it is a web page, perhaps of a failed download"),
    "a patch": ("w.patch", b"diff --git", "Hand in the course's files, with the course's names"),
    "7z named zip": ("w.zip", SEVEN, "it is a 7z archive"),
    "xz named tar.gz": ("w.tar.gz", xz(BOTH), "it is a xz archive"),
    "tar.xz": ("w.tar.xz", xz(BOTH), REPACK),
    "a zip in a zip": ("w.zip", NESTED, REPACK),
    "only macOS's files": ("w.zip", zipped({"__MACOSX/phase1/._x": b"\0"}), "it has w/__MACOSX/"),
    "an empty zip": ("w.zip", zipped({}), "it is empty"),
    "nothing": ("w.zip", b"", "can't be read as a zip archive"),
    "a password": ("w.zip", encrypted(BOTH), "is encrypted: hand it in without a password"),
    "absolute names": (
        "w.zip",
        renamed(f"/home/ada/{ONE}", f"/home/ada/{TWO}"),
        "Files in these folders are not read: pack the folders of the phases",
    ),
    "a drive": ("w.zip", zipped(WINDOWS), "Files in these folders are not read"),
    "a name of two lines": ("w.zip", zipped(inside("a\nb")), "Files in these folders are not read"),
    "solutions/": ("w.zip", zipped(inside("solutions")), "Files in these folders are not read"),
}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return two_phases(tmp_path_factory.mktemp("course"))


def read(course, folder, upload, form):
    """Return the submission of a learner of Canvas, or of one with a folder."""
    name, content = upload[:2]
    folder.mkdir()
    own = folder / "ada" if form == "folder" else folder
    own.mkdir(exist_ok=True)
    (own / (f"ada_17_555_{name}" if form == "canvas" else name)).write_bytes(content)
    [entry] = entries_at([folder], course, folder.with_name("out"), "gradsync grade")
    return entry.submission(course, ["phase1", "phase2"])


@pytest.mark.parametrize("form", ["canvas", "folder"])
@pytest.mark.parametrize("case", READ)
def test_it_is_read_and_a_guess_is_noted(course, tmp_path, case, form):
    submission = read(course, tmp_path / "class", READ[case], form)

    notes = "; ".join(submission.notes)
    assert set(submission.files) == {ONE, TWO}, notes
    assert all(
        "double(number)" in source.decode("utf-8-sig") for source in submission.files.values()
    )
    assert all(b"number + 1" not in source for source in submission.files.values())
    assert READ[case][2] in notes
    assert bool(READ[case][2]) == bool(notes)


@pytest.mark.parametrize("form", ["canvas", "folder"])
@pytest.mark.parametrize("case", PARTS)
def test_the_other_phase_is_read_and_the_reason_is_noted(course, tmp_path, case, form):
    submission = read(course, tmp_path / "class", PARTS[case], form)

    assert set(submission.files) == {TWO}
    [refusal] = [note for note in submission.notes if note.startswith("refused: ")]
    assert PARTS[case][2] in refusal
    assert [note for note in submission.notes if note.startswith("ignored: ")] == []


@pytest.mark.parametrize("form", ["canvas", "folder"])
@pytest.mark.parametrize("case", UNREAD)
def test_it_is_unreadable_with_the_reason(course, tmp_path, case, form):
    submission = read(course, tmp_path / "class", UNREAD[case], form)

    assert submission.files == {}
    notes = [note for note in submission.notes if not note.startswith("missing: ")]
    assert all(note.startswith(("unreadable: ", "refused: ")) for note in notes)
    assert UNREAD[case][2] in "; ".join(notes)


def test_folders_that_begin_with_a_phase_are_a_class(course, tmp_path):
    """Clones of an assignment called phase1."""
    for name in ("phase1-ada", "phase1-bob"):
        (tmp_path / "class" / name).mkdir(parents=True)
        (tmp_path / "class" / name / FILE).write_text(RIGHT)

    found = entries_at([tmp_path / "class"], course, tmp_path / "out", "gradsync grade")

    assert [entry.name for entry in found] == ["phase1-ada", "phase1-bob"]
    assert [set(e.submission(course, ["phase1"]).files) for e in found] == [{ONE}, {ONE}]
