"""Download, check and read MNIST on disk.

A root is a folder with `MNIST/raw`, in the layout of `torchvision.datasets.MNIST`. A download is
complete, or leaves nothing.
"""

from __future__ import annotations

import gzip
import importlib
import math
import shutil
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from filelock import FileLock, Timeout

from gradsync.mnist_folder import (
    IMAGES,
    LABELS,
    RAW,
    DataError,
    download_obstacle,
    holds_mnist,
    mnist_root,
)

TIME_LIMIT = 15.0  # seconds without new data after which a download is given up

Arrays = tuple[torch.Tensor, torch.Tensor]  # images (M, 28, 28) uint8, labels (M,) int64


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


def download_mnist(target: Path) -> str | None:
    """Download MNIST into the root `target`, one process at a time, with a progress bar.

    Returns None on success, or else the reason for the failure, in one line.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
        lock = FileLock(target / "download.lock")
        waited = _acquire(lock)
        try:
            if holds_mnist(target):
                return None
            if waited:  # it failed, and N ranks should not each wait for the same failure
                return "another process has just failed to download it"
            _fetch(target)
        finally:
            lock.release()
    except (OSError, RuntimeError, HTTPException) as problem:
        return (str(problem).strip() or type(problem).__name__).splitlines()[-1].strip("<>")
    return None


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
    return importlib.import_module("torchvision")


def _find(root: Path, name: str) -> Path:
    """Return the path of a file of MNIST, gzipped or not."""
    plain = root / RAW / name
    for path in (plain, plain.with_name(f"{name}.gz")):
        if path.is_file():
            return path
    raise DataError(f"{plain} is missing")


def _read(root: Path, split: str) -> Arrays:
    """Read "train" or "t10k"."""
    images_path, labels_path = (_find(root, f"{split}-{kind}") for kind in (IMAGES, LABELS))
    images, labels = _values(images_path, dims=3), _values(labels_path, dims=1)
    if images.shape[1:] != (28, 28) or not len(images):
        what = f"{len(images)} images of {images.shape[1]}x{images.shape[2]} pixels"
        raise DataError(f"{images_path} is not from MNIST: it has {what} instead of 28x28")
    if len(images) != len(labels):
        what = f"{len(labels):,} labels for the {len(images):,} images of {images_path.name}"
        raise DataError(f"{labels_path} does not match the images: it has {what}")
    if labels.max() > 9:
        what = f"it has the label {labels.max()}, but the largest digit is 9"
        raise DataError(f"{labels_path} is damaged: {what}")
    return images, labels.to(torch.int64)


def _values(path: Path, *, dims: int) -> torch.Tensor:
    """Return the values of an idx file as a tensor, after checking that the file is complete.

    The format is a magic number, `dims` sizes of 4 bytes, then one byte for each value.
    """
    content, begin = _content(path), 4 + 4 * dims
    magic = bytes([0, 0, 8, dims])
    if len(content) < begin:
        raise DataError(f"{path} is incomplete: it ends after {len(content)} bytes")
    if content[:4] != magic:
        start = bytes(content[:4])
        raise DataError(f"{path} is not from MNIST: it begins with {start!r}, not {magic!r}")
    shape = struct.unpack_from(f">{dims}I", content, offset=4)
    promised = begin + math.prod(shape)
    if len(content) != promised:
        what = f"it has {len(content):,} bytes, but its header announces {promised:,}"
        raise DataError(f"{path} is damaged or incomplete: {what}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=begin).reshape(shape))


def _content(path: Path) -> bytearray:
    """Return the content of a file, gzipped or not."""
    packed = path.read_bytes()
    if path.suffix != ".gz":
        return bytearray(packed)
    try:
        return bytearray(gzip.decompress(packed))
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise DataError(f"{path} is damaged or incomplete: {problem}") from None


def _acquire(lock: FileLock) -> bool:
    """Acquire the lock; return whether another process held it."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        lock.acquire()
        return True
    return False


def _fetch(target: Path) -> None:
    for leftover in target.glob(
        "unfinished-*"
    ):  # from a process that was killed; this process has the lock
        shutil.rmtree(leftover, ignore_errors=True)
    dataset = import_torchvision().datasets.MNIST
    with TemporaryDirectory(prefix="unfinished-", dir=target, ignore_cleanup_errors=True) as folder:
        _while_it_grows(Path(folder), lambda: dataset(folder, download=True))
        (target / "MNIST").mkdir(exist_ok=True)
        (Path(folder) / RAW).rename(target / RAW)  # only after the download is complete


def _while_it_grows(folder: Path, fill: Callable[[], object]) -> None:
    """Call `fill`, and give up if `folder` stops growing: urllib itself has no time limit."""
    problems: list[Exception] = []

    def work() -> None:
        try:
            fill()
        except Exception as problem:  # noqa: BLE001 - raised again in the caller's thread
            problems.append(problem)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    size, since = -1, time.monotonic()
    while worker.is_alive():
        worker.join(timeout=0.05)
        before, size = size, sum(path.stat().st_size for path in folder.rglob("*"))
        if size != before:
            since = time.monotonic()
        elif time.monotonic() - since > TIME_LIMIT:
            raise TimeoutError(f"no data arrived for {TIME_LIMIT:g} s")
    if problems:
        raise problems[0]


@dataclass(frozen=True, slots=True)
class DataCheck:
    """What was found, and what to do unless all is fine."""

    status: Literal["ok", "warning", "failed"]  # warning: other digits, or a download, replace it
    found: str
    remedy: str = ""


def check_data() -> DataCheck:
    """Look for MNIST, and read it; if there is none, try whether it can be downloaded."""
    try:
        root = mnist_root()
        if root is not None:
            (images, _), (tests, _) = read_mnist(root)
            return DataCheck("ok", f"{len(images):,} + {len(tests):,} digits in {root}")
    except DataError as problem:
        found, _, remedy = str(problem).partition(". ")
        return DataCheck("failed", found, remedy or "Put a complete copy there.")
    obstacle = download_obstacle()
    if obstacle is None:
        remedy = "The first run downloads it (11 MB)."
        return DataCheck("warning", "no MNIST here, but it can be downloaded", remedy)
    return DataCheck(
        "warning",
        f"no MNIST here, and it can't be downloaded: {obstacle}",
        "scikit-learn's 1,797 smaller digits are used instead. For MNIST, copy the folder MNIST "
        "into `data` in the course, or set GRADSYNC_DATA.",
    )
