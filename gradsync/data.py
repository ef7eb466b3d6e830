"""Load handwritten digits as normalised tensors in memory: MNIST, or else scikit-learn's.

`digits()` reads MNIST from the given folder, from `$GRADSYNC_DATA`, from the course or from the
user's cache (`gradsync.mnist`), or downloads it into that cache.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

from gradsync.mnist import (
    Arrays,
    DataError,
    advice,
    cache_folder,
    download_mnist,
    import_torchvision,
    mnist_root,
    read_mnist,
)

__all__ = ["DataError", "Digits", "InMemoryDigits", "digits", "import_torchvision", "mnist_root"]

MEAN, STD = 0.1307, 0.3081  # of MNIST's training pixels, in 0..1


class InMemoryDigits(Dataset[tuple[torch.Tensor, int]]):
    """Digits as two tensors: `images` (M, 1, 28, 28) float32, `labels` (M,) int64.

    A sample is `(image, label)`: a view (1, 28, 28) of `images`, and an int.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        if len(images) != len(labels):
            raise ValueError(
                f"{len(labels)} labels for {len(images)} images: each image needs one label"
            )
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._samples[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        """Return the samples of a batch; a DataLoader calls this once for each batch."""
        samples = self._samples
        return [samples[index] for index in indices]

    @cached_property
    def _samples(self) -> list[tuple[torch.Tensor, int]]:
        # Computed once: creating a view for each sample costs as much as stacking the batch.
        return list(zip(self.images.unbind(), self.labels.tolist(), strict=True))

    def __reduce__(self) -> tuple[type[InMemoryDigits], tuple[torch.Tensor, torch.Tensor]]:
        """Pickle the two tensors instead of 60,000 views: each view would need an open file."""
        return InMemoryDigits, (self.images, self.labels)

    def first(self, count: int) -> InMemoryDigits:
        """Return the first `count` samples, or all if there are fewer, without copying pixels."""
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        return InMemoryDigits(self.images[:count], self.labels[:count])


@dataclass(frozen=True, slots=True)
class Digits:
    """A training set, a test set, and their source."""

    train: InMemoryDigits
    test: InMemoryDigits
    source: str  # a description in one line
    is_mnist: bool


def digits(
    root: Path | str | None = None, *, download: bool = True, first: int | None = None
) -> Digits:
    """Return MNIST, or else scikit-learn's digits, with a message on stderr.

    Args:
        root: the folder with `MNIST/raw`; by default `$GRADSYNC_DATA` or a usual one.
        download: whether to download MNIST into the cache if it is in none of these.
        first: the largest number of training samples to load; by default all.

    Raises:
        DataError: MNIST is not in `root` or `$GRADSYNC_DATA`, or one of its files is damaged.
    """
    folder = mnist_root(root)
    if folder is not None:
        return _mnist(folder, first)
    obstacle = download_mnist(cache_folder()) if download else "download=False"
    return _mnist(cache_folder(), first) if obstacle is None else _builtin_digits(obstacle, first)


def _mnist(root: Path, first: int | None) -> Digits:
    try:
        (images, labels), test = read_mnist(root)
    except DataError as problem:
        raise DataError(f"{problem}. {advice(root)}.") from None
    train = _normalised((images[:first], labels[:first]))
    return Digits(train, _normalised(test), f"MNIST from {root}", is_mnist=True)


def _normalised(arrays: Arrays) -> InMemoryDigits:
    """Apply ToTensor and Normalize to all samples at once."""
    images, labels = map(torch.from_numpy, arrays)
    pixels = images[:, None].to(torch.float32).div_(255)  # (M, 1, 28, 28)
    return InMemoryDigits(pixels.sub_(MEAN).div_(STD), labels.to(torch.int64))


def _builtin_digits(obstacle: str, first: int | None) -> Digits:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    source = (
        "scikit-learn's built-in digits (8x8, enlarged to 28x28), because MNIST is not in "
        f"{cache_folder()} and could not be downloaded ({obstacle}). To use MNIST, set "
        "GRADSYNC_DATA to a folder with MNIST/raw"
    )
    _say_once(source)
    bunch = load_digits()
    small = torch.from_numpy(bunch.images).to(torch.float32)[:, None]  # (M, 1, 8, 8)
    # As in MNIST, the digit fills 20x20 pixels, with a margin of 4.
    pixels = F.pad(F.interpolate(small, size=(20, 20), mode="bilinear"), (4, 4, 4, 4))
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    train, test = train_test_split(
        range(len(labels)), test_size=0.2, stratify=bunch.target, random_state=0
    )
    pixels = (pixels - pixels[train].mean()) / pixels[train].std()
    parts = train[:first], test
    held_in, held_out = (InMemoryDigits(pixels[part], labels[part]) for part in parts)
    return Digits(held_in, held_out, source, is_mnist=False)


@cache
def _say_once(source: str) -> None:
    # Every rank runs this, but only rank 0 prints.
    if os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":
        print(f"gradsync: Using {source}.", file=sys.stderr)
