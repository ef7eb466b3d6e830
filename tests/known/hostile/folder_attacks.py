"""Attacks in the form of a folder, and files that are not valid sources."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from archives import HONEST, LOADER, OUTSIDE, SOLUTION, TRAINER, attack


def laid_out(folder, files=HONEST):
    """Write files as the folder eve."""
    for name, content in files.items():
        path = folder / "eve" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder / "eve"


def with_trainer(folder, source):
    return laid_out(folder, {**HONEST, TRAINER: source})


def outside(folder):
    return folder.parent / OUTSIDE / "template_trainer.py"


@attack(LOADER, note=f"refused: {TRAINER} is a link")
def link_to_the_solution(folder):
    """A symbolic link to the solution in place of a file."""
    eve = laid_out(folder, {LOADER: HONEST[LOADER]})
    (eve / TRAINER).symlink_to(outside(folder))
    return eve


@attack(note="refused: phase1 is a link")
def link_in_place_of_a_phase(folder):
    """A phase that is a symbolic link to the folder of the solution."""
    eve = folder / "eve"
    eve.mkdir()
    (eve / "phase1").symlink_to(outside(folder).parent)
    return eve


@attack(note="unreadable: eve is a link")
def link_in_place_of_all(folder):
    """A submission that is a symbolic link to the solutions."""
    (folder / "eve").symlink_to(outside(folder).parents[1])
    return folder / "eve"


@attack(note="unreadable: eve.zip is a link")
def link_in_place_of_an_archive(folder):
    """An archive that is a symbolic link to a file outside of the submission."""
    (folder / "eve.zip").symlink_to(outside(folder))
    return folder / "eve.zip"


@attack(note="unreadable: eve.zip is a link")
def link_to_itself(folder):
    """A link that points to itself."""
    (folder / "eve.zip").symlink_to("eve.zip")
    return folder / "eve.zip"


@attack(LOADER, note=f"refused: {TRAINER} is a hard link")
def hard_link_to_the_solution(folder):
    """A hard link to the solution's file in place of a file."""
    eve = laid_out(folder, {LOADER: HONEST[LOADER]})
    (eve / TRAINER).hardlink_to(outside(folder))
    return eve


@attack(LOADER, note=f"refused: {TRAINER} is a pipe")
def pipe(folder):
    """A pipe in place of a file: opening it blocks until a process writes to it."""
    eve = laid_out(folder, {LOADER: HONEST[LOADER]})
    os.mkfifo(eve / TRAINER)
    return eve


@attack(note="unreadable: eve.tar.gz is a pipe")
def pipe_in_place_of_an_archive(folder):
    """A pipe with the name of an archive."""
    os.mkfifo(folder / "eve.tar.gz")
    return folder / "eve.tar.gz"


@attack(LOADER, note=f"refused: {TRAINER} is a socket")
def socket_in_place_of_a_file(folder):
    """A socket in place of a file."""
    eve = laid_out(folder, {LOADER: HONEST[LOADER]})
    here = Path.cwd()
    os.chdir(eve / "phase1")  # a socket's address may have at most 107 bytes
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("template_trainer.py")
    os.chdir(here)
    return eve


@attack(LOADER, note=f"refused: {TRAINER} is a device")
def device(folder):
    """/dev/zero in place of a file: it never ends."""
    eve = laid_out(folder, {LOADER: HONEST[LOADER]})
    try:
        os.mknod(eve / TRAINER, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")
    return eve


@attack(LOADER, note=f"refused: {TRAINER} is a folder")
def folder_in_place_of_a_file(folder):
    """A folder that has the name of a file."""
    return laid_out(folder, {LOADER: HONEST[LOADER], f"{TRAINER}/__init__.py": b""})


@attack(note="refused: phase1 is not a folder")
def file_in_place_of_a_phase(folder):
    """A file that has the name of a folder."""
    return laid_out(folder, {"phase1": b""})


@attack(LOADER, note=f"refused: {TRAINER} has 53,687,091,200 bytes")
def file_of_holes(folder):
    """A file of 50 GB that takes no space on the disk."""
    eve = laid_out(folder)
    os.truncate(eve / TRAINER, 50 * 2**30)
    return eve


@attack(LOADER, TRAINER, note="missing: phase2")
def folder_of_many_files(folder):
    """More files than any real submission has, beside those that count."""
    eve = laid_out(folder)
    for number in range(20_001):
        (eve / "phase1" / str(number)).touch()
    return eve


@attack(LOADER, TRAINER, note="assumed: phase1/Template_trainer.py is phase1/template_trainer.py")
def name_of_another_case(folder):
    """A name that equals the course's on a case-insensitive file system."""
    return laid_out(folder, {LOADER: HONEST[LOADER], "phase1/Template_trainer.py": HONEST[TRAINER]})


@attack(LOADER, TRAINER, note="ignored: conftest.py, phase1/_C.so, phase1/torch, phase1/torch.py, ")
def modules_that_shadow(folder):
    """Modules that would replace the grader's own if they were imported."""
    names = ["conftest.py", "sitecustomize.py", "usercustomize.py", "x.pth", "phase1/torch.py"]
    names += ["phase1/torch/__init__.py", "phase1/_C.so", "phase1/__pycache__/template_trainer.pyc"]
    return laid_out(folder, {**HONEST, **dict.fromkeys(names, b"raise SystemExit")})


@attack(
    LOADER, TRAINER, note="ignored: phase1/pytest.ini, pyproject.toml, setup.cfg, tox.ini (only"
)
def settings_of_pytest(folder):
    """Settings that would change how tests run."""
    names = ["phase1/pytest.ini", "pyproject.toml", "setup.cfg", "tox.ini"]
    return laid_out(folder, {**HONEST, **dict.fromkeys(names, b"[pytest]\naddopts = --co\n")})


@attack(LOADER, note=f"refused: {TRAINER} has bytes that are not utf-8")
def source_that_is_no_text(folder):
    """Bytes that are not UTF-8."""
    return with_trainer(folder, b"x = 1\ny = '\xe9'\n" + SOLUTION * 100)


@attack(LOADER, note=f"refused: {TRAINER} contains NUL bytes")
def source_with_a_nul(folder):
    """A NUL, at which some programs stop reading."""
    return with_trainer(folder, b"x = 1\n\0y = 2\n")


@attack(LOADER, note=f"refused: {TRAINER} is saved as UTF-16")
def source_in_utf16(folder):
    """Two bytes for each character."""
    return with_trainer(folder, "x = 1\n".encode("utf-16"))


@attack(LOADER, note=f"refused: {TRAINER} declares the encoding punycode")
def source_that_takes_hours_to_decode(folder):
    """An encoding whose decoder needs quadratic time."""
    return with_trainer(folder, b"# coding: punycode\n" + b"a" * 900_000 + b"-" + b"b" * 90_000)


@attack(LOADER, note=f"refused: {TRAINER} declares the encoding rot-13")
def source_in_rot13(folder):
    """An encoding that is not a text encoding."""
    return with_trainer(folder, b"# coding: rot13\nk = 1\n")


@attack(
    LOADER, note=f"refused: {TRAINER} is not UTF-8 and declares no encoding that Python supports"
)
def source_in_an_unknown_encoding(folder):
    """An encoding with a name of a megabyte, which Python looks up as a module."""
    return with_trainer(folder, b"# coding: " + b"x" * 1_000_000)
