"""The wheel in a release: pip accepts it, and it depends on the package's content alone."""

import io
import subprocess
import sys
import zipfile

import pytest

from gradsync.course.release import wheel as wheels
from gradsync.course.release.wheel import package_wheel
from gradsync.errors import UnusableInput


def test_the_wheel_is_the_same_each_time():
    assert package_wheel() == package_wheel()


def test_different_content_has_a_different_version(monkeypatch, tmp_path):
    name, _ = package_wheel()
    package = tmp_path / "gradsync"
    package.mkdir()
    (package / "__init__.py").write_text("changed = True\n")
    monkeypatch.setattr(wheels, "PACKAGE", package)

    changed, _ = package_wheel()

    assert name.partition("+r")[0] == changed.partition("+r")[0]
    assert name != changed


def test_it_has_no_caches_and_no_description():
    archive = zipfile.ZipFile(io.BytesIO(package_wheel()[1]))
    [metadata] = [name for name in archive.namelist() if name.endswith("METADATA")]

    assert not [name for name in archive.namelist() if "__pycache__" in name]
    assert "\n\n" not in archive.read(metadata).decode().strip()


def test_pip_installs_it_with_its_command(tmp_path):
    name, content = package_wheel()
    (tmp_path / name).write_bytes(content)
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--target", "site"]
    install = [sys.executable, "-m", "pip", "install", *options, name]

    subprocess.run(install, cwd=tmp_path, check=True)

    [info] = (tmp_path / "site").glob("gradsync-*.dist-info")
    assert "gradsync = gradsync.cli:main" in (info / "entry_points.txt").read_text()
    assert (tmp_path / "site/gradsync/course/release/files/README.md.j2").is_file()


def test_files_that_a_build_left_beside_the_package_do_not_count(monkeypatch, tmp_path):
    before = package_wheel()
    left = tmp_path / "gradsync.egg-info"
    left.mkdir()
    (left / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: gradsync\nVersion: 0.0.1\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert package_wheel() == before


def test_a_package_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr(wheels, "NAME", "gradsync-is-not-installed")

    with pytest.raises(UnusableInput, match=r"pip install -e \."):
        package_wheel()
