"""Read MNIST's files, and check that they are complete, without importing torch.

A root is a folder with `MNIST/raw`, in the layout of `torchvision.datasets.MNIST`.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gradsync.mnist.folder import IMAGES, LABELS, RAW, DataError

Bytes = npt.NDArray[np.uint8]
Arrays = tuple[Bytes, Bytes]  # images (M, 28, 28), labels (M,)


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
    return images, labels


def _values(path: Path, *, dims: int) -> Bytes:
    """Return the values of an idx file after checking that the file is complete.

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
    return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)


def _content(path: Path) -> bytearray:
    """Return the content of a file, gzipped or not."""
    packed = path.read_bytes()
    if path.suffix != ".gz":
        return bytearray(packed)
    try:
        return bytearray(gzip.decompress(packed))
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise DataError(f"{path} is damaged or incomplete: {problem}") from None
