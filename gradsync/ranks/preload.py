"""Imports that torch puts off until they hurt, made while there is time."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress

OPTIMIZERS = "torch._dynamo"  # the first optimizer imports it, for over a second
CACHE = "TORCHINDUCTOR_CACHE_DIR"


def preload(names: Iterable[str]) -> None:
    """Import these modules, as far as this torch has them: some are its private parts.

    torch._dynamo makes the folder of its cache when it is imported, in the user's /tmp if it is
    let; here that folder is gone at once.
    """
    former = os.environ.get(CACHE)
    with tempfile.TemporaryDirectory(prefix="gradsync-") as folder:
        os.environ[CACHE] = folder
        for name in names:
            with suppress(ImportError):
                importlib.import_module(name)
    os.environ.pop(CACHE)
    if former is not None:
        os.environ[CACHE] = former
