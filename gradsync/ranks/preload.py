"""Imports that torch puts off until they hurt, made while there is time."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from contextlib import suppress

from gradsync.workplace import own_folder

OPTIMIZERS = "torch._dynamo"  # the first optimizer imports it, for over a second
CACHE = "TORCHINDUCTOR_CACHE_DIR"


def preload(names: Iterable[str]) -> None:
    """Import these modules, as far as this torch has them: some are its private parts.

    torch._dynamo makes the folder of its cache when it is imported, in the user's /tmp if it is
    let; here that folder is gone at once.
    """
    former = os.environ.get(CACHE)
    with own_folder() as folder:
        os.environ[CACHE] = str(folder)
        for name in names:
            with suppress(ImportError):
                importlib.import_module(name)
    os.environ.pop(CACHE)
    if former is not None:
        os.environ[CACHE] = former
