"""Attacks in the form of a .zip."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from stat import S_IFLNK

from archives import HONEST, LOADER, OUTSIDE, TRAINER, attack

CENTRAL, LOCAL, END = b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"


def packed(folder: Path, files, compression=zipfile.ZIP_DEFLATED) -> Path:
    """Write pairs of a name (or a ZipInfo) and a content as eve.zip."""
    path = folder / "eve.zip"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files:
            archive.writestr(
                name, content, None if isinstance(name, zipfile.ZipInfo) else compression
            )
    return path


def patched(path: Path, signature: bytes, offset: int, value: bytes) -> Path:
    """Overwrite the bytes at `offset` in the last record with that signature."""
    data = bytearray(path.read_bytes())
    start = data.rindex(signature) + offset
    data[start : start + len(value)] = value
    path.write_bytes(data)
    return path


def renamed(folder: Path, name: str) -> Path:
    """Pack the loader with its name, and the trainer with a different name."""
    return packed(folder, [(LOADER, HONEST[LOADER]), (name, HONEST[TRAINER])])


@attack(LOADER, note=f"refused: ../{TRAINER}. If these")
def zip_name_goes_up(folder):
    """A name that leaves the folder into which the archive would be unpacked."""
    return renamed(folder, f"../{TRAINER}")


@attack(LOADER, note=f"refused: ada/../{TRAINER}. If these")
def zip_name_goes_down_and_up(folder):
    """A name that the file system resolves to a different path."""
    return renamed(folder, f"ada/../{TRAINER}")


@attack(LOADER, note=f"refused: /{TRAINER}. If these")
def zip_name_is_absolute(folder):
    """A name that starts at the root of the file system."""
    return renamed(folder, f"/{TRAINER}")


@attack(LOADER, note=f"refused: C:/{TRAINER}. If these")
def zip_name_has_a_drive(folder):
    """A name that starts at the root of a drive."""
    return renamed(folder, f"C:/{TRAINER}")


@attack(LOADER, TRAINER, note=r"assumed: phase1\template_trainer.py is phase1/template_trainer.py")
def zip_name_has_backslashes(folder):
    """A name that is a path on one system and a file name on another."""
    return renamed(folder, TRAINER.replace("/", "\\"))


@attack(LOADER, TRAINER, note="assumed: Phase1/Template_Trainer.py is phase1/template_trainer.py")
def zip_name_differs_in_case(folder):
    """A name that equals the course's on a case-insensitive file system."""
    return renamed(folder, "Phase1/Template_Trainer.py")


@attack(LOADER, note=r"refused: phase1/template_trainer.py\n. If these")
def zip_name_ends_in_a_newline(folder):
    """A name that would break the line of a report."""
    return renamed(folder, f"{TRAINER}\n")


@attack(LOADER, note="_trainer.py. If these are the missing files, give them the course's names")
def zip_name_is_written_wide(folder):
    """A name in full-width letters, which Unicode normalises to the course's name."""
    return renamed(folder, f"phase1/{''.join(chr(ord(c) + 0xFEE0) for c in 'template')}_trainer.py")


@attack(LOADER, note=r"refused: phase1/template_trainer.py\x00.txt. If these")
def zip_name_has_a_nul(folder):
    """A name that zipfile cuts at the NUL, so it becomes the course's name."""
    path = renamed(folder, f"{TRAINER}_.txt")
    path.write_bytes(path.read_bytes().replace(b".py_.txt", b".py\0.txt"))
    return path


@attack(LOADER, TRAINER, note=r"ignored: phase1/\x1b]0;owned\x07\x1b[2J\u202etorch.py")
def zip_name_drives_the_terminal(folder):
    """Escape sequences in a name that the report quotes."""
    name = "phase1/\x1b]0;owned\x07\x1b[2J\u202etorch.py"
    return packed(folder, [*HONEST.items(), (name, b"")])


@attack(LOADER, note=f"refused: {TRAINER} is a link")
def zip_link(folder):
    """A symbolic link to the solution in place of a file."""
    link = zipfile.ZipInfo(TRAINER)
    link.external_attr = (S_IFLNK | 0o777) << 16
    return packed(
        folder, [(LOADER, HONEST[LOADER]), (link, f"../../{OUTSIDE}/template_trainer.py")]
    )


@attack(LOADER, note=f"refused: {TRAINER} is a folder")
def zip_folder_in_place_of_a_file(folder):
    """A folder that has the name of a file."""
    return packed(
        folder, [(LOADER, HONEST[LOADER]), (f"{TRAINER}/", b""), (f"{TRAINER}/__init__.py", b"")]
    )


@attack(LOADER, note=f"refused: {TRAINER} occurs more than once")
def zip_says_it_twice(folder):
    """Two files with one name: different programs read different ones."""
    sibling = TRAINER.replace("trainer", "trainex")
    path = packed(folder, [*HONEST.items(), (sibling, b"another = 1\n")])
    path.write_bytes(path.read_bytes().replace(sibling.encode(), TRAINER.encode()))
    return path


@attack(LOADER, note=f"refused: {TRAINER} is encrypted")
def zip_encrypted(folder):
    """A file that needs a password."""
    path = packed(folder, HONEST.items())
    return patched(path, CENTRAL, 8, b"\x01\0")


@attack(LOADER, note=f"refused: {TRAINER} has an unusual compression method")
def zip_bomb_by_a_rare_method(folder):
    """LZMA, which zipfile unpacks without a limit."""
    lzma = zipfile.ZipInfo(TRAINER)
    lzma.compress_type = zipfile.ZIP_LZMA
    return packed(folder, [(LOADER, HONEST[LOADER]), (lzma, b"#" * 2**20)])


@attack(LOADER, note=f"refused: {TRAINER} has 52,428,800 bytes")
def zip_bomb(folder):
    """50 MB of source in 50 kB."""
    return packed(folder, [(LOADER, HONEST[LOADER]), (TRAINER, b"#" * (50 * 2**20))])


@attack(LOADER, note=f"refused: {TRAINER} is damaged in the archive")
def zip_bomb_that_lies(folder):
    """50 MB with a declared size of 100 bytes."""
    path = zip_bomb(folder)
    return patched(path, CENTRAL, 24, struct.pack("<I", 100))


@attack(LOADER, note=f"refused: {TRAINER} is damaged in the archive")
def zip_says_more_than_it_has(folder):
    """A file that is shorter than its declared size."""
    path = packed(folder, HONEST.items())
    return patched(path, CENTRAL, 24, struct.pack("<I", 1000))


@attack(note="the course's files are in several folders")
def zip_of_folders_that_share_their_bytes(folder):
    """150 entries for the same 100 kB, as in zip bombs with overlapping files."""
    body = zipfile.ZipInfo("x")
    path = packed(folder, [(body, b"#" * 100_000)])
    data = path.read_bytes()
    start = data.index(CENTRAL)
    one = bytearray(data[start : data.index(END)])
    many = b"".join(
        bytes(one[:28]) + struct.pack("<H", len(name)) + bytes(one[30:46]) + name
        for name in (f"t{i:04}/template_trainer.py".encode() for i in range(150))
    )
    tail = struct.pack("<4s4H2IH", END, 0, 0, 150, 150, len(many), start, 0)
    path.write_bytes(data[:start] + many + tail)
    return path


@attack(note="has too many files with the names")
def zip_of_too_many_that_may_count(folder):
    """Copies in many folders, each of which could be the submission's folder."""
    names = (f"t{i}/template_trainer.py" for i in range(20))
    return packed(folder, [(name, b"#" * 2**20) for name in names])


@attack(note="has none of the course's files: it has ada.zip")
def zip_in_a_zip(folder):
    """An archive in an archive, nested many times."""
    inner = packed(folder, HONEST.items()).read_bytes()
    for _ in range(20):
        inner = packed(folder, [("ada.zip", inner)]).read_bytes()
    return folder / "eve.zip"


@attack(note="its list of files is too long")
def zip_of_a_million_files(folder):
    """A list of files that alone fills the memory."""
    one = struct.pack("<4s4B4HL2L5H2L", CENTRAL, 20, 0, 20, 0, *[0] * 4, 0, 0, 0, 0, *[0] * 4, 0, 0)
    path = folder / "eve.zip"
    path.write_bytes(
        one * 1_000_000
        + struct.pack("<4s4H2IH", END, 0, 0, 0xFFFF, 0xFFFF, len(one) * 1_000_000, 0, 0)
    )
    return path


@attack(note="has more than 20,000 files")
def zip_of_many_files(folder):
    """More files than any real submission has, in a list of allowed size."""
    return packed(folder, ((f"{i}", b"") for i in range(20_001)), zipfile.ZIP_STORED)


@attack(LOADER, TRAINER, note="ignored: conftest.py")
def zip_of_huge_names(folder):
    """Names of 60,000 characters, nearly the maximum in a zip."""
    huge = [(f"{i}" + "x" * 60_000 + ".py", b"") for i in range(10)]
    return packed(folder, [*HONEST.items(), *huge, ("conftest.py", b"")])


@attack(note="can't be read as a zip archive")
def zip_whose_list_lies_elsewhere(folder):
    """A list of files that claims to have 4 GB."""
    path = packed(folder, HONEST.items())
    return patched(path, END, 12, struct.pack("<I", 2**32 - 2))


@attack(LOADER, note=f"refused: {TRAINER} is damaged in the archive")
def zip_that_contradicts_itself(folder):
    """Different names for one file in the list and in the file's header."""
    path = packed(folder, HONEST.items())
    return patched(path, LOCAL, 30, b"phase2")


@attack(LOADER, note=f"refused: {TRAINER} is damaged in the archive")
def zip_with_a_flipped_bit(folder):
    """Bytes that do not match their checksum."""
    path = packed(folder, HONEST.items(), zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes().replace(HONEST[TRAINER], b"trainer = 9\n"))
    return path


@attack(note="unreadable: eve.zip")
def zip_truncated(folder):
    """An archive that ends in the middle."""
    path = packed(folder, HONEST.items())
    path.write_bytes(path.read_bytes()[:-30])
    return path


@attack(LOADER, TRAINER, note="")
def zip_with_the_wrong_ending(folder):
    """A zip with the name of a tar."""
    return packed(folder, HONEST.items()).rename(folder / "eve.tar.gz")


@attack(note="the course's files are in several folders")
def zip_of_two_submissions(folder):
    """The files of two learners in one archive."""
    pairs = ((who, name) for who in ("ada", "eve") for name in HONEST)
    files = [(f"{who}/{name}", HONEST[name] + f"# {who}\n".encode()) for who, name in pairs]
    return packed(folder, files)


@attack(note=r"unreadable: \x1b[2J\n.zip")
def zip_of_an_evil_name(folder):
    """The archive's name contains terminal control sequences."""
    path = folder / "\x1b[2J\n.zip"
    path.write_bytes(io.BytesIO(b"no zip").getvalue())
    return path
