"""What befalls a checkpoint: a full disk, changes on the way, code that is put in."""

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
HARMS = frozenset(DONE.values())  # what a file that is to stay whole must not suffer
REFUSED = re.compile(r"GLOBAL (torch\.(?:nn|optim)\.\S+)")
NO_FOLDERS = (-1, -1)  # the descriptors of open folders that a rename's paths begin at


def limit_writes(size: int) -> None:
    """Make writing more than `size` bytes to a file fail on this rank, as a full disk does."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))


def lift_limit() -> None:
    """Let this rank write as much again as before `limit_writes`."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def file_changes() -> list[tuple[str, Path]]:
    """Return a list that grows from now on: what is done to a file, and its absolute path.

    A file is `removed`, `renamed` (from this path), `emptied`, `made`, or `brought` (to this path,
    out of a folder that is neither its own nor within that). Only what Python does is noted, not
    what torch writes by itself.
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
    """Return what a file holds, nothing where there is none."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def refused_in(path: str, load: Callable[[], Any]) -> str | None:
    """Return the class of torch's modules or optimizers for which nobody can safely read a file.

    None where torch reads it as tensors and plain values, or it is no file of torch's, or `load`
    allows by itself what it needs, so that it reads it though torch may run nothing from it.
    """
    try:
        torch.load(path, weights_only=True)
    except pickle.UnpicklingError as error:
        found = REFUSED.search(str(error))
    except Exception:  # noqa: BLE001 - another format altogether
        return None
    else:
        return None
    if found is None:
        return None
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    try:
        load()
    except Exception:  # noqa: BLE001 - also where it is still to be written
        return found[1]
    else:
        return None
    finally:
        del os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"]


def _place(path: Path) -> Path:
    """Return the whole path; a link at its end is not followed, since the link is what goes."""
    return path.parent.resolve() / path.name


def _opened(flags: Any) -> str | None:
    """Return what becomes of a file that is opened so."""
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
    """Return files that leave a file `ran` when they are read without care.

    One is as torch saves a dict, with `entries` in it, the other a pickle of nothing but code.
    """
    whole = io.BytesIO()
    torch.save({**entries, "more": Bomb()}, whole)
    return [whole.getvalue(), pickle.dumps(Bomb())]
