"""Return whether MNIST is here and complete, or can be downloaded, without importing torch."""

from __future__ import annotations

from gradsync.finding import Finding
from gradsync.mnist.files import read_mnist
from gradsync.mnist.folder import DataError, download_obstacle, mnist_root

NAME = "data"


def check_data() -> Finding:
    """Look for MNIST, and read it; if there is none, check whether it can be downloaded."""
    try:
        root = mnist_root()
        if root is not None:
            (images, _), (tests, _) = read_mnist(root)
            return Finding(NAME, "ok", f"{len(images):,} + {len(tests):,} digits in {root}")
    except DataError as problem:
        found, _, remedy = str(problem).partition(". ")
        return Finding(NAME, "failed", found, remedy=remedy or "Put a complete copy there.")
    obstacle = download_obstacle()
    if obstacle is None:
        remedy = "The first run downloads it (11 MB)."
        return Finding(NAME, "warning", "no MNIST here, but it can be downloaded", remedy=remedy)
    return Finding(
        NAME,
        "warning",
        f"no MNIST here, and it can't be downloaded: {obstacle}",
        remedy="scikit-learn's 1,797 smaller digits are used instead. For MNIST, copy the folder "
        "MNIST into `data` in the course, or set GRADSYNC_DATA.",
    )
