"""Defer torch's Python kernels for meta tensors: they take a quarter of torch's import time.

Only tensors on the device "meta" and compilers use them, but torch does not import them again when
they are used. So they are deferred only in the grader's process, whose code is known, and
`complete` runs them if that code mentions such tensors or compilers.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from gradsync.ranks.fast import uses
from gradsync.ranks.fast.deferral import Deferral, module_spec

NAME = "torch._meta_registrations"
NEEDED = re.compile(r"[\"']meta\b|FakeTensor|torch\.(compile|export|_dynamo|distributed\.tensor)")


def defer() -> None:
    """Defer them until `complete`, unless torch is imported already."""
    if "torch" not in sys.modules and uses("meta_kernels") and (spec := module_spec(NAME)):
        Deferral(spec, {}).begin()


def complete(folder: Path) -> None:
    """Run them if a module of `folder` that is imported needs them."""
    module = sys.modules.get(NAME)
    if module is None or "activate_meta" in vars(module):  # it has run
        return
    if any(map(_needs, _files(folder))):
        _ = module.activate_meta  # any attribute runs the module


def _files(folder: Path) -> Iterable[Path]:
    files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    return [Path(file) for file in files if file.startswith(f"{folder}{os.sep}")]


def _needs(file: Path) -> bool:
    return NEEDED.search(file.read_text(encoding="utf-8", errors="replace")) is not None
