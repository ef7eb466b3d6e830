"""Handwritten digits as normalised tensors in memory: MNIST, or else scikit-learn's.

`digits()` takes MNIST from the folder it is given, from `$GRADSYNC_DATA`, from the user's
cache, or from a download into that cache.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from platformdirs import user_cache_path
from torch.utils.data import Dataset

from gradsync.mnist import (
    FILES,
    RAW,
    Arrays,
    DataError,
    download_mnist,
    holds_mnist,
    import_torchvision,
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
            raise ValueError(f"{len(labels)} labels for {len(images)} images: each needs one")
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._samples[index]

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, int]]:
        """Return the samples of a batch: a DataLoader asks so, once a batch."""
        samples = self._samples
        return [samples[index] for index in indices]

    @cached_property
    def _samples(self) -> list[tuple[torch.Tensor, int]]:
        # Made once: a view made for each sample costs as much as stacking the batch.
        return list(zip(self.images.unbind(), self.labels.tolist(), strict=True))

    def __reduce__(self) -> tuple[type[InMemoryDigits], tuple[torch.Tensor, torch.Tensor]]:
        """Travel as two tensors: pickled one by one, 60,000 views would be as many files."""
        return InMemoryDigits, (self.images, self.labels)

    def first(self, count: int) -> InMemoryDigits:
        """Return the first `count` samples, or all where there are fewer; copies no pixel."""
        if count < 1:
            raise ValueError(f"count is {count}: ask for at least 1 sample")
        return InMemoryDigits(self.images[:count], self.labels[:count])


@dataclass(frozen=True, slots=True)
class Digits:
    """A training and a test set, and where they come from."""

    train: InMemoryDigits
    test: InMemoryDigits
    source: str  # a line for people
    is_mnist: bool


def digits(root: Path | str | None = None, *, download: bool = True) -> Digits:
    """Return MNIST; where it can't be had, scikit-learn's digits and a line on stderr.

    Args:
        root: the folder that holds `MNIST/raw`; else `$GRADSYNC_DATA`, else the user's cache.
        download: whether to fetch MNIST into the cache where it is in none of these.

    Raises:
        DataError: `root` or `$GRADSYNC_DATA` holds no MNIST, or a file of MNIST is damaged.
    """
    folder = mnist_root(root)
    if folder is not None:
        return _mnist(folder)
    obstacle = download_mnist(_cache_folder()) if download else "download=False"
    return _mnist(_cache_folder()) if obstacle is None else _builtin_digits(obstacle)


def mnist_root(root: Path | str | None = None) -> Path | None:
    """Return the folder whose MNIST `digits(root)` reads; None where it is in none yet.

    Raises:
        DataError: `root` or `$GRADSYNC_DATA` holds no MNIST.
    """
    asked = root if root is not None else os.environ.get("GRADSYNC_DATA")
    if not asked:
        return _cache_folder() if holds_mnist(_cache_folder()) else None
    folder = Path(asked).expanduser()
    if holds_mnist(folder):
        return folder
    name = "the folder given" if root is not None else "GRADSYNC_DATA"
    meant = [parent for parent in folder.absolute().parents[:2] if holds_mnist(parent)]
    advice = f"Give {meant[0]} instead" if meant else _advice(folder)
    raise DataError(f"no MNIST in {name}, {folder}: {RAW / FILES[0]} is missing there. {advice}.")


def _cache_folder() -> Path:
    return user_cache_path("gradsync", appauthor=False)


def _advice(root: Path) -> str:
    if root == _cache_folder():
        return f"Delete {root / 'MNIST'} and run again: MNIST is then downloaded afresh"
    return (
        "Put a whole copy of MNIST there, as torchvision.datasets.MNIST writes it, or give no "
        "folder and unset GRADSYNC_DATA: MNIST is then downloaded"
    )


def _mnist(root: Path) -> Digits:
    try:
        train, test = read_mnist(root)
    except DataError as problem:
        raise DataError(f"{problem}. {_advice(root)}.") from None
    return Digits(_normalised(train), _normalised(test), f"MNIST from {root}", is_mnist=True)


def _normalised(arrays: Arrays) -> InMemoryDigits:
    """What ToTensor and Normalize make of each sample, for all samples at once."""
    images, labels = arrays
    pixels = images[:, None].to(torch.float32).div_(255)  # (M, 1, 28, 28)
    return InMemoryDigits(pixels.sub_(MEAN).div_(STD), labels)


def _builtin_digits(obstacle: str) -> Digits:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    source = (
        "scikit-learn's built-in digits (8x8, brought to 28x28): MNIST is neither in "
        f"{_cache_folder()} nor to be downloaded ({obstacle}). Set GRADSYNC_DATA to a folder "
        "that holds MNIST/raw to have it"
    )
    _say_once(source)
    bunch = load_digits()
    small = torch.from_numpy(bunch.images).to(torch.float32)[:, None]  # (M, 1, 8, 8)
    # As in MNIST: the digit fills 20x20, with a margin of 4 around it.
    pixels = F.pad(F.interpolate(small, size=(20, 20), mode="bilinear"), (4, 4, 4, 4))
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    train, test = train_test_split(
        range(len(labels)), test_size=0.2, stratify=bunch.target, random_state=0
    )
    pixels = (pixels - pixels[train].mean()) / pixels[train].std()
    held_in, held_out = (InMemoryDigits(pixels[part], labels[part]) for part in (train, test))
    return Digits(held_in, held_out, source, is_mnist=False)


@cache
def _say_once(source: str) -> None:
    # Every rank comes here; the first one speaks for all.
    if os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":
        print(f"gradsync: using {source}.", file=sys.stderr)
