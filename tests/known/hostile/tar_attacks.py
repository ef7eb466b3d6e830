"""Attacks in the form of a .tar.gz."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from pathlib import Path

from archives import HONEST, LOADER, OUTSIDE, TRAINER, attack

SPARSE_HEADER = {b"GNU.sparse.major": b"1", b"GNU.sparse.name": TRAINER.encode()}


def member(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, **fields) -> bytes:
    """Return the bytes of a member in a tar."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    padding = b"\0" * (-len(content) % tarfile.BLOCKSIZE)
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape") + content + padding


def pax(records: dict[bytes, bytes]) -> bytes:
    """Return a header that describes the next member."""
    lines = b""
    for key, value in records.items():
        size = len(key) + len(value) + 3
        size += len(str(size + len(str(size))))
        lines += b"%d %s=%s\n" % (size, key, value)
    return member("pax", lines, tarfile.XHDTYPE)


def packed(folder: Path, *members: bytes) -> Path:
    """Write the honest loader, then these members, as eve.tar.gz."""
    path = folder / "eve.tar.gz"
    whole = b"".join([member(LOADER, HONEST[LOADER]), *members, b"\0" * 1024])
    path.write_bytes(gzip.compress(whole, 1))
    return path


@attack(LOADER, note=f"refused: ../{TRAINER}. If these")
def tar_name_goes_up(folder):
    """A name that leaves the folder into which the archive would be unpacked."""
    return packed(folder, member(f"../{TRAINER}", HONEST[TRAINER]))


@attack(LOADER, note=f"refused: /{TRAINER}. If these")
def tar_name_is_absolute(folder):
    """A name that starts at the root of the file system, given in a separate header."""
    header = pax({b"path": f"/{TRAINER}".encode()})
    return packed(folder, header, member("harmless.txt", HONEST[TRAINER]))


@attack(LOADER, TRAINER, note=r"ignored: phase1/\udcff\udcfe.py")
def tar_name_is_no_utf8(folder):
    """Bytes in a name that are not text."""
    return packed(
        folder,
        member(TRAINER, HONEST[TRAINER]),
        member(b"phase1/\xff\xfe.py".decode(errors="surrogateescape")),
    )


@attack(LOADER, note=f"refused: {TRAINER} is a link")
def tar_link(folder):
    """A symbolic link to the solution in place of a file."""
    target = f"../../{OUTSIDE}/template_trainer.py"
    return packed(folder, member(TRAINER, kind=tarfile.SYMTYPE, linkname=target))


@attack(LOADER, note=f"refused: {TRAINER} is a hard link")
def tar_hard_link(folder):
    """A hard link to the solution in place of a file."""
    target = f"../{OUTSIDE}/template_trainer.py"
    return packed(folder, member(TRAINER, kind=tarfile.LNKTYPE, linkname=target))


@attack(LOADER, note="refused: phase2 is a link")
def tar_link_in_place_of_a_folder(folder):
    """A phase that is a link to the solution."""
    return packed(folder, member("phase2", kind=tarfile.SYMTYPE, linkname=f"../{OUTSIDE}"))


@attack(LOADER, note=f"refused: {TRAINER} is a device")
def tar_device(folder):
    """A device in place of a file: /dev/zero never ends."""
    return packed(folder, member(TRAINER, kind=tarfile.CHRTYPE, devmajor=1, devminor=5))


@attack(LOADER, note=f"refused: {TRAINER} is a pipe")
def tar_pipe(folder):
    """A pipe in place of a file: opening it blocks until a process writes to it."""
    return packed(folder, member(TRAINER, kind=tarfile.FIFOTYPE))


@attack(LOADER, note=f"refused: {TRAINER} is a folder")
def tar_folder_in_place_of_a_file(folder):
    """A folder that has the name of a file."""
    return packed(folder, member(TRAINER, kind=tarfile.DIRTYPE))


@attack(LOADER, note=f"refused: {TRAINER} is not a regular file")
def tar_of_an_unknown_kind(folder):
    """A member of an unknown type."""
    return packed(folder, member(TRAINER, HONEST[TRAINER], kind=b"Z"))


@attack(LOADER, note=f"refused: {TRAINER} is a sparse file")
def tar_sparse(folder):
    """A sparse file in GNU's old format, with further blocks of holes."""
    header = bytearray(member(TRAINER, kind=tarfile.GNUTYPE_SPARSE))
    header[482] = 1
    header[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(header))[0]
    blocks = [bytes(504) + b"\1" + bytes(7), bytes(512)]
    return packed(folder, bytes(header), *blocks, member("x"))


@attack(LOADER, note=f"refused: {TRAINER} is a sparse file")
def tar_sparse_by_a_header(folder):
    """A sparse file in the newer format, which hides its name in a header."""
    return packed(folder, pax(SPARSE_HEADER), member("GNUSparseFile.0/x", b"1\n0\n9\n"))


@attack(note="it can't be read as a .tar.gz")
def tar_of_many_sparse_digits(folder):
    """A list of holes with one number of 200 MB, for which tarfile needs quadratic time."""
    header = pax({**SPARSE_HEADER, b"GNU.sparse.minor": b"0"})
    return packed(folder, header, member("x", b"9\n" + b"1" * (200 * 2**20)))


@attack(LOADER, note=f"refused: {TRAINER} occurs more than once")
def tar_says_it_twice(folder):
    """Two files with one name, as in an archive to which a file was appended."""
    return packed(folder, member(TRAINER, HONEST[TRAINER]), member(f"./{TRAINER}", b"x = 1\n"))


@attack(LOADER, note=f"refused: {TRAINER} has 52,428,800 bytes")
def tar_of_50_megabytes_of_source(folder):
    """A file that is larger than any real file."""
    return packed(folder, member(TRAINER, b"#" * (50 * 2**20)))


@attack(note="it has more than 256 MiB")
def tar_bomb(folder):
    """300 MiB of zeros in 300 kB, before the files that count."""
    deflate, block = zlib.compressobj(9, wbits=31), bytes(2**20)
    path = folder / "eve.tgz"
    with path.open("wb") as file:
        file.write(deflate.compress(member("data.bin", size=300 * 2**20)))
        for _ in range(300):
            file.write(deflate.compress(block))
        file.write(deflate.flush())
    return path


@attack(note="it has more than 256 MiB")
def tar_that_says_more_than_it_has(folder):
    """A member that claims to have 8 GB."""
    return packed(folder, member("data.bin", size=8 * 2**30 - 1))


@attack(note="it can't be read as a .tar.gz")
def tar_of_a_huge_name(folder):
    """A name of 200 MB, which tarfile reads into memory."""
    return packed(folder, member("././@LongLink", b"x" * (200 * 2**20), tarfile.GNUTYPE_LONGNAME))


@attack(LOADER, note=f"missing: {TRAINER}")
def tar_of_many_long_names(folder):
    """Names of a megabyte each, which together take long to read."""
    name = member("././@LongLink", b"x" * 2**20, tarfile.GNUTYPE_LONGNAME)
    return packed(folder, (name + member("x")) * 9)


@attack(note="it can't be read as a .tar.gz")
def tar_of_headers_without_end(folder):
    """5,000 headers in a chain: tarfile calls itself for each of them."""
    chain = member("././@LongLink", b"x\0", tarfile.GNUTYPE_LONGNAME) * 5000
    return packed(
        folder, member(TRAINER, HONEST[TRAINER]), chain, member("x"), member("conftest.py")
    )


@attack(note="it can't be read as a .tar.gz")
def tar_of_many_digits(folder):
    """A megabyte of digits, for which tarfile needs hours in older versions of Python."""
    return packed(folder, member("pax", b"1" * 2**20, tarfile.XHDTYPE), member("x"))


@attack(note="has a negative size")
def tar_that_goes_back(folder):
    """A member of a negative size, which makes tarfile read the same header again and again."""
    return packed(folder, member("data.bin", size=-1024))


@attack(note="has more than 20,000 files")
def tar_of_many_files(folder):
    """More files than any real submission has."""
    return packed(folder, member("x") * 20_001)


@attack(note="it can't be read as a .tar.gz")
def tar_of_many_headers(folder):
    """Headers that are not files, so a limit on the number of files ignores them."""
    return packed(folder, member("x", kind=tarfile.XGLTYPE) * 60_001)


@attack(note="it can't be read as a .tar.gz")
def tar_of_noise(folder):
    """A .tar.gz whose content is not a tar."""
    path = folder / "eve.tar.gz"
    path.write_bytes(gzip.compress(b"no tar " * 100))
    return path


@attack(note="it can't be read as a .tar.gz")
def tar_truncated(folder):
    """An archive that ends before its checksum."""
    path = packed(folder, member(TRAINER, HONEST[TRAINER]))
    path.write_bytes(path.read_bytes()[:-4])
    return path


@attack(note="it can't be read as a .tar.gz")
def tar_with_a_wrong_checksum(folder):
    """Bytes that do not match their checksum, found after the files have been read."""
    path = packed(folder, member(TRAINER, HONEST[TRAINER]))
    data = bytearray(path.read_bytes())
    data[-8] ^= 1
    path.write_bytes(data)
    return path


@attack(note="it has data after its end")
def tar_with_more_behind_it(folder):
    """A second archive after the first, which only some programs read."""
    path = packed(folder)
    path.write_bytes(2 * path.read_bytes())
    return path


@attack(LOADER, TRAINER, note="")
def tar_with_the_wrong_ending(folder):
    """A tar with the name of a zip."""
    return packed(folder, member(TRAINER, HONEST[TRAINER])).rename(folder / "eve.zip")


@attack(note="it can't be read as a .tar.gz")
def tar_that_is_not_compressed(folder):
    """A .tar.gz that is only a tar."""
    path = folder / "eve.tar.gz"
    with tarfile.open(path, "w") as archive:
        for name, content in HONEST.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path
