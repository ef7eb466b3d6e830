"""What happens to checkpoint files: a full disk, changes during a save, code in a file."""

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
HARMS = frozenset(DONE.values())  # changes that the former checkpoint must not suffer
REFUSED = re.compile(r"GLOBAL (torch\.(?:nn|optim)\.\S+)")
NO_FOLDERS = (-1, -1)  # a rename whose paths are not relative to open folders


def limit_writes(size: int) -> None:
    """Make writing more than `size` bytes to a file fail on this rank, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))


def lift_limit() -> None:
    """Let this rank write as much as before `limit_writes`."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def file_changes() -> list[tuple[str, Path]]:
    """Return a list that records what is done to files from now on, with absolute paths.

    A file is `removed`, `renamed` (from this path), `emptied`, `made`, or `brought` (to this path,
    from a folder that is neither its own nor inside that). Only Python's own calls are recorded,
    not what torch's C++ code writes.
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
    """Return the content of a file, or nothing if there is no file."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def refused_in(path: str, load: Callable[[], Any]) -> str | None:
    """Return the class in torch's modules or optimizers that prevents loading a file safely.

    None means that torch loads the file as tensors and plain values, that it is not a file of
    torch's, or that `load` itself allows what it needs and loads it although torch may run nothing.
    """
    try:
        torch.load(path, weights_only=True)
    except pickle.UnpicklingError as error:
        found = REFUSED.search(str(error))
    except Exception:  # noqa: BLE001 - also if it is still to be written
        return None
    else:
        return None
    if found is None:
        return None
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    try:
        load()
    except Exception:  # noqa: BLE001 - also if it is still to be written
        return found[1]
    else:
        return None
    finally:
        del os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"]


def _place(path: Path) -> Path:
    """Return the absolute path without following a link at its end: the link itself is changed."""
    return path.parent.resolve() / path.name


def _opened(flags: Any) -> str | None:
    """Return what opening a file with these flags does to it, if anything."""
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
    """Return files that create a file `ran` if they are loaded without care.

    One is saved by torch as a dict with `entries`, the other is a pickle with only code.
    """
    whole = io.BytesIO()
    torch.save({**entries, "more": Bomb()}, whole)
    return [whole.getvalue(), pickle.dumps(Bomb())]
