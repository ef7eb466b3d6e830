"""Probes for checkpoint files: a full disk, changes during a save, code in a file."""

from __future__ import annotations

import io
import os
import pickle
import re
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

DONE = {"os.remove": "removed", "os.rename": "renamed", "os.truncate": "emptied"}
HARMS = frozenset(DONE.values())  # a save must not do this to the previous checkpoint
REFUSED = re.compile(r"GLOBAL (torch\.(?:nn|optim)\.\S+)")
NO_FOLDERS = (-1, -1)  # a rename whose paths are not relative to open folders


def limit_writes(size: int) -> None:
    """Make writing more than `size` bytes to a file fail on this rank, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))


def lift_limit() -> None:
    """Remove the limit that `limit_writes` set on this rank."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def file_changes() -> list[tuple[str, Path]]:
    """Return a list that records all later changes to files, with absolute paths.

    A file is `removed`, `renamed` (from this path), `emptied`, `made`, or `brought` (moved to this
    path from outside of its folder). Only calls of Python are recorded, and no writes of torch's
    C++ code.
    """
    changes: list[tuple[str, Path]] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        done = _opened(arguments[2]) if event == "open" else DONE.get(event)
        if done is not None and isinstance(arguments[0], (str, bytes, os.PathLike)):
            changes.append((done, _place(Path(os.fsdecode(arguments[0])))))
        if event == "os.rename" and arguments[2:] == NO_FOLDERS:
            old, new = (_place(Path(os.fsdecode(name))) for name in arguments[:2])
            if not old.is_relative_to(new.parent):
                changes.append(("brought", new))

    sys.addaudithook(note)
    return changes


def content_of(path: str) -> bytes:
    """Return the content of a file, or no bytes if there is no file."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def refused_in(path: str, load: Callable[[], Any]) -> str | None:
    """Return the class in torch's modules or optimizers that prevents loading a file safely.

    None means that torch loads the file as tensors and plain values, that torch can't read the file
    for a different reason, or that `load` loads it even if torch allows only safe loading.
    """
    try:
        torch.load(path, weights_only=True)
    except pickle.UnpicklingError as error:
        found = REFUSED.search(str(error))
    except Exception:  # noqa: BLE001 - for example, there is no file
        return None
    else:
        return None
    if found is None:
        return None
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    try:
        load()
    except Exception:  # noqa: BLE001 - even if it is not written yet
        return found[1]
    else:
        return None
    finally:
        del os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"]


def _place(path: Path) -> Path:
    """Return the absolute path without following a link at its end: the link itself is changed."""
    return path.parent.resolve() / path.name


def _opened(flags: Any) -> str | None:
    """Return the change that opening a file with these flags makes to it, or None."""
    if not isinstance(flags, int):
        return None
    if flags & os.O_TRUNC:
        return "emptied"
    return "made" if flags & os.O_CREAT else None


class Bomb:
    """A pickle that writes a file when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("open('ran', 'w').close()",))


def files_with_code(entries: Mapping[str, Any]) -> list[bytes]:
    """Return files that create a file `ran` if loading them runs their code.

    One is saved by torch as a dict with `entries`, the other is a pickle with only code.
    """
    whole = io.BytesIO()
    torch.save({**entries, "more": Bomb()}, whole)
    return [whole.getvalue(), pickle.dumps(Bomb())]
