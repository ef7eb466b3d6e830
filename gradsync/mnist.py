"""MNIST on disk: found, downloaded by torchvision whole or not at all, checked and read.

A root is a folder that holds `MNIST/raw`, as `torchvision.datasets.MNIST` lays it out.
"""

from __future__ import annotations

import gzip
import importlib
import math
import os
import shutil
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

PATIENCE = 15.0  # seconds without a byte, and a download is given up
RAW = Path("MNIST", "raw")
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
FILES = [f"{split}-{kind}" for split in ("train", "t10k") for kind in (IMAGES, LABELS)]

Arrays = tuple[torch.Tensor, torch.Tensor]  # images (M, 28, 28) uint8, labels (M,) int64


class DataError(Exception):
    """MNIST is not where it should be, or is damaged. Names the file, and what to do."""


def holds_mnist(root: Path) -> bool:
    """Whether any of MNIST's files is in `root`, as it is or gzipped."""
    ends = ("", ".gz")
    return any(os.access(root / RAW / (name + end), os.R_OK) for name in FILES for end in ends)


def read_mnist(root: Path) -> tuple[Arrays, Arrays]:
    """Return the training and the test set in `root`.

    Raises:
        DataError: a file is missing, unreadable, damaged or not MNIST's.
    """
    try:
        return _read(root, "train"), _read(root, "t10k")
    except OSError as problem:
        where, what = problem.filename or root, problem.strerror or problem
        raise DataError(f"{where} cannot be read: {what}") from None


def download_mnist(target: Path) -> str | None:
    """Fetch MNIST into the root `target`, one process at a time, with a progress bar.

    Returns None when MNIST is there, or else a line that says what was in the way.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
        lock = FileLock(target / "download.lock")
        waited = _acquire(lock)
        try:
            if holds_mnist(target):
                return None
            if waited:  # without success: N ranks must not each wait for the whole time limit
                return "another process has just tried"
            _fetch(target)
        finally:
            lock.release()
    except (OSError, RuntimeError, HTTPException) as problem:
        return (str(problem).strip() or type(problem).__name__).splitlines()[-1].strip("<>")
    return None


def import_torchvision() -> Any:
    """Return torchvision, also where its compiled operators don't fit this torch.

    Beside a CPU build of torch, PyPI's torchvision stops at "operator torchvision::nms does
    not exist". Datasets and transforms need neither of the two operators, only their schemas.
    """
    if "torchvision" in sys.modules:
        return sys.modules["torchvision"]
    try:
        return _import_afresh()
    except RuntimeError as problem:
        if "torchvision::nms" not in str(problem):
            raise
    # Not before the first attempt: there they would clash with operators that do load.
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)
    return _import_afresh()


def _import_afresh() -> Any:
    # An import that failed leaves submodules behind, and the next one trips over them.
    for name in [name for name in sys.modules if name.startswith("torchvision.")]:
        del sys.modules[name]
    return importlib.import_module("torchvision")


def _find(root: Path, name: str) -> Path:
    """Return where a file of MNIST lies, as it is or gzipped."""
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
        raise DataError(f"{images_path} is not MNIST's: it has {what}, not of 28x28")
    if len(images) != len(labels):
        what = f"{len(labels):,} labels for the {len(images):,} images of {images_path.name}"
        raise DataError(f"{labels_path} belongs to other images: it has {what}")
    if labels.max() > 9:
        what = f"it has the label {labels.max()}, and digits end at 9"
        raise DataError(f"{labels_path} is damaged: {what}")
    return images, labels.to(torch.int64)


def _values(path: Path, *, dims: int) -> torch.Tensor:
    """Return the bytes of an idx file in their shape, once it is sure that all of them are there.

    The format: a magic number, `dims` sizes of 4 bytes, then a byte for each value.
    """
    content, begin = _content(path), 4 + 4 * dims
    magic = bytes([0, 0, 8, dims])
    if len(content) < begin:
        raise DataError(f"{path} is only part of a file: it ends after {len(content)} bytes")
    if content[:4] != magic:
        start = bytes(content[:4])
        raise DataError(f"{path} is not MNIST's: it begins with {start!r}, not {magic!r}")
    shape = struct.unpack_from(f">{dims}I", content, offset=4)
    promised = begin + math.prod(shape)
    if len(content) != promised:
        what = f"it has {len(content):,} bytes where its header promises {promised:,}"
        raise DataError(f"{path} is damaged, or only part of a file: {what}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=begin).reshape(shape))


def _content(path: Path) -> bytearray:
    """Return what is in a file, gzipped or not."""
    packed = path.read_bytes()
    if path.suffix != ".gz":
        return bytearray(packed)
    try:
        return bytearray(gzip.decompress(packed))
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise DataError(f"{path} is damaged, or only part of a file: {problem}") from None


def _acquire(lock: FileLock) -> bool:
    """Take the lock; return whether another process had it."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        lock.acquire()
        return True
    return False


def _fetch(target: Path) -> None:
    for leftover in target.glob("unfinished-*"):  # of a process that was killed: we hold the lock
        shutil.rmtree(leftover, ignore_errors=True)
    dataset = import_torchvision().datasets.MNIST
    with TemporaryDirectory(prefix="unfinished-", dir=target, ignore_cleanup_errors=True) as folder:
        _while_it_grows(Path(folder), lambda: dataset(folder, download=True))
        (target / "MNIST").mkdir(exist_ok=True)
        (Path(folder) / RAW).rename(target / RAW)  # whole or not at all


def _while_it_grows(folder: Path, fill: Callable[[], object]) -> None:
    """Call `fill`, and give up once `folder` stops growing: urllib itself would wait for ever."""
    problems: list[Exception] = []

    def work() -> None:
        try:
            fill()
        except Exception as problem:  # noqa: BLE001 - raised again, in the caller's thread
            problems.append(problem)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    size, since = -1, time.monotonic()
    while worker.is_alive():
        worker.join(timeout=0.05)
        before, size = size, sum(path.stat().st_size for path in folder.rglob("*"))
        if size != before:
            since = time.monotonic()
        elif time.monotonic() - since > PATIENCE:
            raise TimeoutError(f"not a byte came in {PATIENCE:g} s")
    if problems:
        raise problems[0]
