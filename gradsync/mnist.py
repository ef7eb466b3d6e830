"""MNIST on disk: find its folder, download its files with torchvision, read and check them.

A root is a folder with `MNIST/raw`, in the layout of `torchvision.datasets.MNIST`.
"""

from __future__ import annotations

import gzip
import math
import os
import shutil
import socket
import struct
import sys
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from gradsync.course.catalogue import CourseError, find_course
from gradsync.finding import Finding, Subject

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"  # as in torchvision
RAW = Path("MNIST", "raw")
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
FILES = tuple(f"{split}-{kind}" for split in ("train", "t10k") for kind in (IMAGES, LABELS))
DATA = Subject("data")
TIME_LIMIT = 15.0  # seconds without new data after which a download is given up
Bytes = npt.NDArray[np.uint8]
Arrays = tuple[Bytes, Bytes]  # images (M, 28, 28), labels (M,)


class DataError(Exception):
    """MNIST is missing or damaged; the message names the file."""


# Find


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
    absent = RAW / f"train-{IMAGES}"
    raise DataError(f"There is no MNIST in {name}, {folder}: {absent} is missing. {hint}.")


def holds_mnist(root: Path) -> bool:
    """Return whether any of MNIST's files is in `root`, gzipped or not."""
    ends = ("", ".gz")
    return any(os.access(root / RAW / (name + end), os.R_OK) for name in FILES for end in ends)


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


def advice(root: Path) -> str:
    """Return advice on a folder whose files are missing or damaged."""
    if root == cache_folder():
        return f"Delete {root / 'MNIST'} and run this again to download MNIST"
    return (
        "Put a complete copy of MNIST there, as torchvision.datasets.MNIST writes it. To download "
        "it instead, pass no folder and unset GRADSYNC_DATA"
    )


# Read


def read_mnist(root: Path) -> tuple[Arrays, Arrays]:
    """Return the training and the test set in `root`.

    Raises:
        DataError: a file is missing, unreadable, damaged or not from MNIST.
    """
    try:
        return _read(root, "train"), _read(root, "t10k")
    except OSError as problem:
        where, what = problem.filename or root, problem.strerror or problem
        raise DataError(f"{where} can't be read: {what}") from None


def _read(root: Path, split: str) -> Arrays:
    """Read "train" or "t10k"."""
    _, images = _values(root, f"{split}-{IMAGES}", (28, 28))
    path, labels = _values(root, f"{split}-{LABELS}", ())
    if len(images) != len(labels):
        counts = f"{len(labels):,} labels for {len(images):,} images"
        raise DataError(f"{path} does not match the images: there are {counts}")
    if labels.max() > 9:
        raise DataError(f"{path} is damaged: it has the label {labels.max()}, but 9 is the largest")
    return images, labels


def _values(root: Path, name: str, shape: tuple[int, ...]) -> tuple[Path, Bytes]:
    """Return the path of an idx file, and its values, each of this shape.

    The format is a magic number and the sizes, in 4 bytes each, then one byte for each number. So
    the size of a complete file determines its header.
    """
    plain = root / RAW / name
    path = next(filter(Path.is_file, (plain, plain.with_name(f"{name}.gz"))), None)
    if path is None:
        raise DataError(f"{plain} is missing")
    content, dims = _content(path), 1 + len(shape)
    begin = 4 + 4 * dims
    count = max(len(content) - begin, 0) // math.prod(shape)
    header = bytes([0, 0, 8, dims]) + struct.pack(f">{dims}I", count, *shape)
    if not count or len(content) != begin + count * math.prod(shape) or content[:begin] != header:
        what = f"it has {len(content):,} bytes and begins with {bytes(content[:begin])!r}"
        raise DataError(f"{path} is damaged or incomplete, or not from MNIST: {what}")
    return path, np.frombuffer(content, np.uint8, offset=begin).reshape(count, *shape)


def _content(path: Path) -> bytearray:
    """Return the content of a file, gzipped or not."""
    packed = path.read_bytes()
    if path.suffix != ".gz":
        return bytearray(packed)
    try:
        return bytearray(gzip.decompress(packed))
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise DataError(f"{path} is damaged or incomplete: {problem}") from None


# Download


def download_mnist(target: Path) -> str | None:
    """Download MNIST into the root `target`, one process at a time, with progress bars.

    Return None on success, otherwise the reason for the failure, in one line. A failed download
    leaves no files of MNIST.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
        lock = FileLock(target / "download.lock")
        waited = _acquire(lock)
        try:
            if holds_mnist(target):
                return None
            if waited:  # the other process failed: N ranks should not wait for the same failure
                return "another process has just failed to download it"
            _fetch(target)
        finally:
            lock.release()
    except (OSError, RuntimeError, HTTPException) as problem:
        return (str(problem).strip() or type(problem).__name__).splitlines()[-1].strip("<>")
    return None


def _acquire(lock: FileLock) -> bool:
    """Acquire the lock; return whether another process held it."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        lock.acquire()
        return True
    return False


def _fetch(target: Path) -> None:
    for leftover in target.glob("unfinished-*"):  # of a killed process: this one has the lock
        shutil.rmtree(leftover, ignore_errors=True)
    dataset = import_torchvision().datasets.MNIST
    with TemporaryDirectory(prefix="unfinished-", dir=target, ignore_cleanup_errors=True) as folder:
        with _socket_timeout(TIME_LIMIT):
            dataset(folder, download=True)
        (target / "MNIST").mkdir(exist_ok=True)
        (Path(folder) / RAW).rename(target / RAW)  # only after the download is complete


def import_torchvision() -> Any:
    """Return torchvision, even if its compiled operators don't match this torch.

    With a CPU build of torch, the import of PyPI's torchvision fails with "operator
    torchvision::nms does not exist". Datasets and transforms need only the operators' schemas.
    """
    if "torchvision" in sys.modules:
        return sys.modules["torchvision"]
    try:
        return _import_again()
    except RuntimeError as problem:
        if "torchvision::nms" not in str(problem):
            raise
    import torch

    # Only after the first attempt failed: they would clash with operators that do load.
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)
    return _import_again()


def _import_again() -> Any:
    # An import that failed leaves submodules behind, which make the next one fail.
    for name in [name for name in sys.modules if name.startswith("torchvision.")]:
        del sys.modules[name]
    return import_module("torchvision")


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    """Set how long a connection may be silent: torchvision sets no limit."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


# Check


def check_data() -> Finding:
    """Look for MNIST, and read it; if there is none, check whether it can be downloaded."""
    try:
        root = mnist_root()
        if root is not None:
            (images, _), (tests, _) = read_mnist(root)
            return DATA.ok(f"{len(images):,} + {len(tests):,} digits in {root}")
    except DataError as problem:
        found, _, remedy = str(problem).partition(". ")
        return DATA.failed(found, remedy or "Put a complete copy there.")
    found, remedy = "no MNIST here, but it can be downloaded", "The first run downloads it (11 MB)."
    if (obstacle := _download_obstacle()) is not None:
        found = f"no MNIST here, and it can't be downloaded: {obstacle}"
        remedy = (
            "scikit-learn's 1,797 smaller digits are used instead. For MNIST, copy the folder "
            "MNIST into `data` in the course, or set GRADSYNC_DATA."
        )
    return DATA.warning(found, remedy)


def _download_obstacle(seconds: float = 2.0) -> str | None:
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
