"""Find the folder that has MNIST, without importing torch."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path

RAW = Path("MNIST", "raw")
IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
FILES = [f"{split}-{kind}" for split in ("train", "t10k") for kind in (IMAGES, LABELS)]


class DataError(Exception):
    """MNIST is missing or damaged; the message names the file."""


def holds_mnist(root: Path) -> bool:
    """Tell whether any of MNIST's files is in `root`, gzipped or not."""
    ends = ("", ".gz")
    return any(os.access(root / RAW / (name + end), os.R_OK) for name in FILES for end in ends)


def mnist_root(root: Path | str | None = None) -> Path | None:
    """Return the folder from which `digits(root)` reads MNIST, or None if it must be downloaded.

    Raises:
        DataError: MNIST is not in `root` or `$GRADSYNC_DATA`.
    """
    asked = root if root is not None else os.environ.get("GRADSYNC_DATA")
    if not asked:
        return cache_folder() if holds_mnist(cache_folder()) else None
    folder = Path(asked).expanduser()
    if holds_mnist(folder):
        return folder
    name = "the given folder" if root is not None else "GRADSYNC_DATA"
    meant = [parent for parent in folder.absolute().parents[:2] if holds_mnist(parent)]
    hint = f"Use {meant[0]} instead" if meant else advice(folder)
    raise DataError(f"There is no MNIST in {name}, {folder}: {RAW / FILES[0]} is missing. {hint}.")


def cache_folder() -> Path:
    """Return the folder into which MNIST is downloaded."""
    return user_cache_path("gradsync", appauthor=False)


def advice(root: Path) -> str:
    """Return what to do about a folder whose files are missing or damaged."""
    if root == cache_folder():
        return f"Delete {root / 'MNIST'} and run this again to download MNIST"
    return (
        "Put a complete copy of MNIST there, as torchvision.datasets.MNIST writes it. To download "
        "it instead, pass no folder and unset GRADSYNC_DATA"
    )
