"""The installed gradsync as a wheel, so that a release can be installed without a checkout.

A wheel is a zip archive of the package and of a folder that describes it:
https://packaging.python.org/specifications/binary-distribution-format. The package is pure Python,
so the wheel contains its files unchanged, and no build is needed.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib.metadata import Distribution, distributions

from gradsync.course.release.zips import zipped
from gradsync.errors import UnusableInput
from gradsync.ranks.protocol.user_files import PACKAGE

NAME = "gradsync"
TAGS = "Wheel-Version: 1.0\nGenerator: gradsync\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
DIGITS = 12  # of the digest in the version


def package_wheel() -> tuple[str, bytes]:
    """Return the file name and the content of a wheel of the installed package.

    Its version ends with a digest of the content, as in "0.1.0+r5e0c...": pip replaces an installed
    gradsync if, and only if, something changed.

    Raises:
        UnusableInput: the package runs without being installed, so its requirements are unknown.
    """
    installed = _installed()
    paths = (p for p in PACKAGE.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    package = {p.relative_to(PACKAGE.parent).as_posix(): p.read_bytes() for p in sorted(paths)}
    about = _about(installed)
    version = f"{installed.version}+r{_digest(package | about)[:DIGITS]}"
    info = f"{NAME}-{version}.dist-info"
    header = re.sub(r"(?m)^Version: .*$", f"Version: {version}", about["METADATA"].decode())
    described = {**about, "METADATA": header.encode(), "WHEEL": TAGS.encode()}
    files = package | {f"{info}/{name}": content for name, content in described.items()}
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD").encode()
    return f"{NAME}-{version}-py3-none-any.whl", zipped(files)


def _installed() -> Distribution:
    """Return the installed package; a build leaves a second description of it in a checkout."""
    for found in distributions(name=NAME):
        if found.read_text("METADATA"):
            return found
    raise UnusableInput(
        "gradsync is not installed, so there is no list of the packages that learners need. "
        "Run `pip install -e .` in its folder."
    )


def _about(installed: Distribution) -> dict[str, bytes]:
    """Return the package's metadata without the description, its commands and its license."""
    header, _, _ = (installed.read_text("METADATA") or "").partition("\n\n")
    about = {"METADATA": f"{header}\n".encode()}
    for name in ("entry_points.txt", "licenses/LICENSE"):
        if (text := installed.read_text(name)) is not None:
            about[name] = text.encode()
    return about


def _digest(files: Mapping[str, bytes]) -> str:
    whole = hashlib.sha256()
    for path, content in sorted(files.items()):
        whole.update(f"{path}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return whole.hexdigest()


def _record(files: Mapping[str, bytes], own: str) -> str:
    """Return the list of the wheel's files with digests and sizes; `own` is the list's path."""
    rows = []
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(content)}")
    return "\n".join([*rows, f"{own},,", ""])
