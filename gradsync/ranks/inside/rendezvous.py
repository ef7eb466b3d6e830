"""Untrusted side: the default process group of a run, and the store through which ranks meet."""

from __future__ import annotations

import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

# Once only C++ refers to a store, its Python methods are lost.
STORES: list[RankStore] = []
POLL_SECONDS = 0.0005  # between two checks for a key; with many ranks on few cores, longer


def start_group(path: str, rank: int, world_size: int, backend: str = "gloo") -> None:
    """Start the default process group with the other ranks."""
    store = RankStore(path, world_size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)


def make_mesh(backend: str, sizes: dict[str, int]) -> DeviceMesh:
    """Make a device mesh of all ranks, with these names and sizes of its dimensions."""
    device = "cuda" if "nccl" in backend else "cpu"
    return init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


class RankStore(dist.Store):  # type: ignore[name-defined, misc]
    """A `FileStore` whose waits can be interrupted; unlike a port, a parallel run can't take it.

    torch's FileStore waits in C++, where no signal ends it: a notebook's rank that waits for
    another one could only be killed, with its variables. It also looks for a key only every 10 ms.
    """

    def __init__(self, path: str, world_size: int) -> None:
        super().__init__()
        STORES.append(self)
        self._file = dist.FileStore(path, world_size)  # type: ignore[attr-defined]
        self._poll_seconds = POLL_SECONDS * max(1, world_size / 4)

    def clone(self) -> RankStore:
        """Return this store for a new group, which adds its name to its keys."""
        return self

    def set(self, key: str, value: str) -> None:
        self._file.set(key, value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return bytes(self._file.get(key))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are set.

        Raises:
            DistStoreError: `timeout`, or the store's own timeout, has passed.
        """
        deadline = timeout or self.timeout
        until = time.monotonic() + deadline.total_seconds()
        while not self._file.check(keys):
            if time.monotonic() > until:
                raise dist.DistStoreError(f"{', '.join(keys)} did not appear within {deadline}")
            time.sleep(self._poll_seconds)

    def add(self, key: str, amount: int) -> int:
        return int(self._file.add(key, amount))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return bytes(self._file.compare_set(key, expected, desired))

    def check(self, keys: list[str]) -> bool:
        return bool(self._file.check(keys))

    def num_keys(self) -> int:
        return int(self._file.num_keys())

    def delete_key(self, key: str) -> bool:
        return bool(self._file.delete_key(key))
