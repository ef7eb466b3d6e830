"""MNIST on disk: found, downloaded whole or not at all, checked, and read by torchvision.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

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
        with _unpacked(root) as folder:
            return _read(root, folder, "train"), _read(root, folder, "t10k")
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
            if waited:  # and in vain: N ranks shall not run out of patience one after the other
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


@contextmanager
def _unpacked(root: Path) -> Iterator[Path]:
    """Give a folder with four plain files, which torchvision wants: `root`, or a temporary one."""
    paths = [_find(root, name) for name in FILES]
    if all(path.suffix != ".gz" for path in paths):
        yield root
        return
    with TemporaryDirectory(prefix="gradsync-") as folder:
        raw = Path(folder) / RAW
        raw.mkdir(parents=True)
        for name, path in zip(FILES, paths, strict=True):
            open_packed: Any = gzip.open if path.suffix == ".gz" else open
            try:
                with open_packed(path, "rb") as packed, (raw / name).open("wb") as plain:
                    shutil.copyfileobj(packed, plain)
            except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
                raise DataError(f"{path} is damaged, or only part of a file: {problem}") from None
        yield Path(folder)


def _read(root: Path, folder: Path, split: str) -> Arrays:
    """Read "train" or "t10k" from `folder`; what goes wrong is told of `root`'s files."""
    images, labels = f"{split}-{IMAGES}", f"{split}-{LABELS}"
    image_count, *size = _shape(folder / RAW / images, _find(root, images), dims=3)
    (label_count,) = _shape(folder / RAW / labels, _find(root, labels), dims=1)
    if size != [28, 28] or not image_count:
        what = f"{image_count} images of {size[0]}x{size[1]} pixels"
        raise DataError(f"{_find(root, images)} is not MNIST's: it has {what}, not of 28x28")
    if image_count != label_count:
        what = f"{label_count:,} labels for the {image_count:,} images of {images}"
        raise DataError(f"{_find(root, labels)} belongs to other images: it has {what}")
    datasets = import_torchvision().datasets
    try:
        mnist = datasets.MNIST(str(folder), train=split == "train")
    except Exception as problem:  # noqa: BLE001 - whatever its parser met, the folder is what helps
        what = f"{type(problem).__name__}: {problem}".splitlines()[0]
        raise DataError(f"torchvision cannot read {root / 'MNIST'} ({what})") from None
    if mnist.targets.max() > 9:
        what = f"it has the label {mnist.targets.max()}, and digits end at 9"
        raise DataError(f"{_find(root, labels)} is damaged: {what}")
    return mnist.data, mnist.targets


def _shape(path: Path, shown: Path, *, dims: int) -> tuple[int, ...]:
    """Return the shape that an idx file promises, once it is sure that the file keeps it.

    The format: a magic number, `dims` sizes of 4 bytes, then a byte for each value.
    """
    magic = bytes([0, 0, 8, dims])
    with path.open("rb") as file:
        header = file.read(4 + 4 * dims)
    size = path.stat().st_size
    if len(header) < 4 + 4 * dims:
        raise DataError(f"{shown} is only part of a file: it ends after {size} bytes")
    if header[:4] != magic:
        raise DataError(f"{shown} is not MNIST's: it begins with {header[:4]!r}, not {magic!r}")
    shape = struct.unpack(f">{dims}I", header[4:])
    promised = len(header) + math.prod(shape)
    if size != promised:
        what = f"it has {size:,} bytes where its header promises {promised:,}"
        raise DataError(f"{shown} is damaged, or only part of a file: {what}")
    return shape


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
