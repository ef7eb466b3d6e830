"""Find the folder with MNIST, without importing torch: `$GRADSYNC_DATA` or a usual folder."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

from platformdirs import user_cache_path

from gradsync.course.catalogue import CourseError, find_course

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"  # as in torchvision
RAW = Path("MNIST", "raw")
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
FILES = [f"{split}-{kind}" for split in ("train", "t10k") for kind in (IMAGES, LABELS)]


class DataError(Exception):
    """MNIST is missing or damaged; the message names the file."""


def holds_mnist(root: Path) -> bool:
    """Return whether any of MNIST's files is in `root`, gzipped or not."""
    ends = ("", ".gz")
    return any(os.access(root / RAW / (name + end), os.R_OK) for name in FILES for end in ends)


def mnist_root(root: Path | str | None = None) -> Path | None:
    """Return the folder from which `digits(root)` reads MNIST, or None if it must be downloaded.

    Raises:
        DataError: MNIST is not in `root` or `$GRADSYNC_DATA`.
    """
    asked = root if root is not None else os.environ.get("GRADSYNC_DATA")
    if not asked:
        return next(filter(holds_mnist, usual_folders()), None)
    folder = Path(asked).expanduser()
    if holds_mnist(folder):
        return folder
    name = "the given folder" if root is not None else "GRADSYNC_DATA"
    meant = [parent for parent in folder.absolute().parents[:2] if holds_mnist(parent)]
    hint = f"Use {meant[0]} instead" if meant else advice(folder)
    raise DataError(f"There is no MNIST in {name}, {folder}: {RAW / FILES[0]} is missing. {hint}.")


def usual_folders() -> Iterator[Path]:
    """Yield the folders to search for MNIST if the user names none.

    They are `data` in the course, `shared/mnist` beside the course, and the cache. The course is
    found from the working folder, or else from the folder of this package.
    """
    with suppress(CourseError):
        root = find_course().root
        yield root / "data"
        yield root.parent / "shared" / "mnist"
    yield cache_folder()


def cache_folder() -> Path:
    """Return the folder into which MNIST is downloaded."""
    return user_cache_path("gradsync", appauthor=False)


def download_obstacle(seconds: float = 2.0) -> str | None:
    """Return why MNIST can't be downloaded, in one line, or None if its server answers."""
    request = urllib.request.Request(MIRROR, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=seconds).close()
    except HTTPError as refusal:  # the server answers, but does not serve the folder's own address
        return None if refusal.code < 500 else str(refusal)
    except (OSError, HTTPException) as problem:
        reason = getattr(problem, "reason", problem)
        return str(getattr(reason, "strerror", None) or reason)
    return None


def advice(root: Path) -> str:
    """Return advice on a folder whose files are missing or damaged."""
    if root == cache_folder():
        return f"Delete {root / 'MNIST'} and run this again to download MNIST"
    return (
        "Put a complete copy of MNIST there, as torchvision.datasets.MNIST writes it. To download "
        "it instead, pass no folder and unset GRADSYNC_DATA"
    )
