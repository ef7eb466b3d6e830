"""What befalls a checkpoint: a disk that fills up while it is written, code that is put into it."""

from __future__ import annotations

import io
import pickle
import resource
import signal
from collections.abc import Mapping
from typing import Any

import torch


def limit_writes(size: int) -> None:
    """Make writing more than `size` bytes to a file fail on this rank, as a full disk does."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))


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
