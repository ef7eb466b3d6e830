"""What a suite's probes need on the ranks; it imports nothing that is slow to start."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import cloudpickle

# Each run brings its own to the ranks: none is there to be imported, and changed, before.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@dataclass(frozen=True)
class Info:
    """Who a rank is, as a trainer's `RankInfo` says it, each on a machine of its own."""

    rank: int
    world_size: int
    local_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29500


def raised(call: Callable[[], Any]) -> Exception | None:
    """Return the exception that a call ends in, None where it returns.

    Raises:
        NotImplementedError: what is called is still to be written.
    """
    try:
        call()
    except NotImplementedError:
        raise
    except Exception as error:  # noqa: BLE001 - which one it is, is the answer
        return error
    return None


def salt_hashes(salt: int) -> None:
    """Have the hashes of texts differ, as in processes that are not forked from the same one."""
    plain = builtins.hash

    def salted_hash(value: Hashable) -> int:
        is_text = "'" in repr(value) or '"' in repr(value)  # or holds one: those hashes are salted
        return plain((salt, repr(value))) if is_text else plain(value)

    builtins.hash = salted_hash
