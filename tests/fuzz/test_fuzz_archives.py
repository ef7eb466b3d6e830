"""Every input is read or refused, without an exception, and gives only the course's files."""

import gzip
import io
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import mutated

from gradsync.course.catalogue import find_course
from gradsync.submission import read_submission
from gradsync.submission.contents import MAX_FILE
from gradsync.submission.sources import source_flaw

COURSE = find_course(Path(__file__).parent)
NAMES = {f"{phase}/{file}" for phase in COURSE.phases for file in COURSE.files(phase)}
FILES = dict.fromkeys(sorted(NAMES), b"x = 1\n" * 20)
MORE = {"README.md": b"#", "phase1/torch.py": b"", f"phase1/{'x' * 120}.txt": b"y" * 600}


def zipped(compression, top=""):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in {**FILES, **MORE}.items():
            archive.writestr(zipfile.ZipInfo(top + name), content, compression)
        archive.comment = b"by hand"
    return buffer.getvalue()


def tarred(form, top=""):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, content in {**FILES, **MORE}.items():
            member = tarfile.TarInfo(top + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, kind in (("phase1/link", tarfile.SYMTYPE), ("phase2/pipe", tarfile.FIFOTYPE)):
            member = tarfile.TarInfo(top + name)
            member.type, member.linkname = kind, "../x"
            archive.addfile(member)
    return buffer.getvalue().rstrip(b"\0") + bytes(1024)


ZIPS = [zipped(zipfile.ZIP_STORED), zipped(zipfile.ZIP_DEFLATED, "ada/"), zipped(zipfile.ZIP_LZMA)]
TARS = [tarred(tarfile.GNU_FORMAT, "./"), tarred(tarfile.PAX_FORMAT, "ada/")]


def resealed(tar):
    """Return a tar whose headers have correct checksums, so that readers accept them."""
    data = bytearray(tar)
    for start in range(0, len(data) - 511, 512):
        block = data[start : start + 512]
        if block[257:262] == b"ustar":
            sums = tarfile.calc_chksums(bytes(block))
            data[start + 148 : start + 156] = struct.pack("8s", b"%06o\0 " % sums[0])
    return bytes(data)


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Return a function that reads bytes as an archive and checks the result."""
    folder = tmp_path_factory.mktemp("fuzz")

    def read(name, data):
        (folder / name).write_bytes(data)
        submission = read_submission(folder / name, COURSE)
        assert submission.files.keys() <= NAMES
        assert all(len(source) <= MAX_FILE for source in submission.files.values())
        assert all(source_flaw(source) == "" for source in submission.files.values())
        assert all(note.isprintable() and len(note) < 1000 for note in submission.notes)
        assert submission.files.keys() == NAMES or submission.notes
        assert [path.name for path in folder.iterdir()] == [name]
        (folder / name).unlink()
        return submission

    return read


@given(data=mutated(st.sampled_from(ZIPS)))
def test_a_broken_zip_is_read_or_refused(read, data):
    read("eve.zip", data)


@given(data=mutated(st.sampled_from(TARS)))
def test_a_broken_tar_is_read_or_refused(read, data):
    read("eve.tar.gz", gzip.compress(data, 1))


@given(data=mutated(st.sampled_from(TARS)))
def test_a_broken_tar_with_correct_checksums_is_read_or_refused(read, data):
    read("eve.tar.gz", gzip.compress(resealed(data), 1))


@given(data=mutated(st.sampled_from([gzip.compress(tar, 1) for tar in TARS])))
def test_a_broken_gzip_is_read_or_refused(read, data):
    read("eve.tgz", data)


@given(data=st.binary(max_size=2000), name=st.sampled_from(["eve.zip", "eve.tgz"]))
def test_random_bytes_are_read_or_refused(read, data, name):
    read(name, data)


@given(
    source=mutated(st.sampled_from([b"# coding: latin-1\nx = 1\n", b"\xef\xbb\xbf# coding: \n"]))
)
def test_a_broken_source_is_kept_unchanged_or_refused(tmp_path_factory, source):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "template_trainer.py").write_bytes(source)

    files = read_submission(folder, COURSE, phases=["phase1"]).files

    assert files in ({}, {"phase1/template_trainer.py": source})


@pytest.mark.parametrize("zipped", ZIPS[:2], ids=["stored", "deflated"])
def test_a_zip_is_valid_before_mutation(read, zipped):
    assert read("eve.zip", zipped).files == FILES


@pytest.mark.parametrize("tar", TARS, ids=["gnu", "pax"])
def test_a_tar_is_valid_before_mutation(read, tar):
    assert resealed(tar) == tar
    assert read("eve.tar.gz", gzip.compress(tar, 1)).files == FILES
