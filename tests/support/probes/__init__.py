"""Helpers that the suites' probes need on the ranks; this module imports nothing slow."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import cloudpickle

# Each run sends this module to the ranks, so no submission can import and change it before.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@dataclass(frozen=True)
class Info:
    """A rank's fields, as in a trainer's `RankInfo`, with each rank on its own machine."""

    rank: int
    world_size: int
    local_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 29500


def raised(call: Callable[[], Any]) -> Exception | None:
    """Return the exception that a call raises, or None if it returns.

    Raises:
        NotImplementedError: the called function is not written yet.
    """
    try:
        call()
    except NotImplementedError:
        raise
    except Exception as error:  # noqa: BLE001 - the type of the exception is the answer
        return error
    return None


def salt_hashes(salt: int) -> None:
    """Make the hashes of strings differ, as in processes with different parents."""
    plain = builtins.hash

    def salted_hash(value: Hashable) -> int:
        is_text = "'" in repr(value) or '"' in repr(value)  # or contains one: Python salts its hash
        return plain((salt, repr(value))) if is_text else plain(value)

    builtins.hash = salted_hash
