"""Phase 1: my share of the samples."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler


class restored_numpy_state:
    """`with restored_numpy_state():` -- use numpy's global dice inside, find them as they were."""

    def __enter__(self):
        self.state = np.random.get_state()

    def __exit__(self, *exc):
        np.random.set_state(self.state)
        return False


class PaddedDistributedSampler(Sampler[int]):
    def __init__(self, dataset, num_replicas, rank, *, shuffle=True, seed=0):
        if num_replicas < 1:
            raise ValueError("argument num_replicas: %r < 1" % (num_replicas,))
        if rank < 0 or num_replicas <= rank:
            raise ValueError("argument rank: %r is not one of %d ranks" % (rank, num_replicas))
        self._count = len(dataset)
        if self._count == 0:
            raise ValueError("argument dataset: empty")
        self._ranks, self._rank, self._shuffle, self._seed = num_replicas, rank, shuffle, seed
        self.set_epoch(0)

    def set_epoch(self, epoch):
        """Shuffle here and now, once an epoch; a pass then only reads."""
        order = list(range(self._count))
        if self._shuffle:
            digest = hashlib.md5(repr((int(self._seed), int(epoch))).encode(), usedforsecurity=False).digest()
            with restored_numpy_state():
                np.random.seed(np.frombuffer(digest, dtype="<u4"))
                order = np.random.permutation(self._count).tolist()
        begin = self._rank * len(self)
        endless = itertools.cycle(order)
        self._mine = tuple(itertools.islice(endless, begin, begin + len(self)))

    def __iter__(self):
        return iter(self._mine)

    def __len__(self):
        return self._count // self._ranks + bool(self._count % self._ranks)


def create_dataloaders(
    train_dataset,
    val_dataset,
    batch_size,
    *,
    world_size=1,
    rank=0,
    seed=0,
    num_workers=0,
    pin_memory=False,
):
    settings = dict(batch_size=batch_size, num_workers=num_workers, pin_memory=pin_memory)
    if world_size == 1:
        dice = torch.Generator()
        dice.manual_seed(seed)
        return DataLoader(train_dataset, shuffle=True, generator=dice, **settings), DataLoader(val_dataset, **settings)
    mine = lambda dataset, shuffle: PaddedDistributedSampler(dataset, world_size, rank, shuffle=shuffle, seed=seed)
    return (
        DataLoader(train_dataset, sampler=mine(train_dataset, True), **settings),
        DataLoader(val_dataset, sampler=mine(val_dataset, False), **settings),
    )


def main():
    shares = [list(PaddedDistributedSampler(bytes(10), 4, rank, shuffle=False)) for rank in range(4)]
    for rank, share in enumerate(shares):
        print("rank %d:" % rank, share)
    print("All have equally many." if len({len(share) for share in shares}) == 1 else "They are NOT equal!")
    given = list(itertools.chain(*shares))
    print("All samples are covered." if set(given) == set(range(10)) else "Some samples are NOT covered!")
    print("They overlap only in the padding." if given[:10] == list(range(10)) and given[10:] == [0, 1] else "They overlap elsewhere too!")


if __name__ == "__main__":
    main()
