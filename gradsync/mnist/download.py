"""Download MNIST with torchvision: a failed download leaves no files."""

from __future__ import annotations

import importlib
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from filelock import FileLock, Timeout

from gradsync.mnist.folder import RAW, holds_mnist

TIME_LIMIT = 15.0  # seconds without new data after which a download is given up


def download_mnist(target: Path) -> str | None:
    """Download MNIST into the root `target`, one process at a time, with a progress bar.

    Return None on success, otherwise the reason for the failure, in one line.
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


@contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    """Set how long a connection may be silent: torchvision sets no limit."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
