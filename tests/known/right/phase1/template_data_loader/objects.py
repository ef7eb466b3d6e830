"""Phase 1: my share of the samples."""

import hashlib
import itertools

import numpy as np


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
