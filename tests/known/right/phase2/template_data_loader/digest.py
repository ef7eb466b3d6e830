"""The order of an epoch is that of the digests of its indices."""

import hashlib


class ResumableDistributedSampler(Sampler[int]):
    """Strided shares; the order of an epoch is that of the BLAKE2 digests of its indices."""

    def __init__(
        self, dataset: Sized, num_replicas: int, rank: int, *, shuffle: bool = True, seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if len(dataset) == 0:
            raise ValueError("the dataset has no samples")
        if num_replicas < 1:
            raise ValueError(f"num_replicas is {num_replicas}, must be 1 or more")
        if rank < 0 or rank > num_replicas - 1:
            raise ValueError(f"rank is {rank}, must be from 0 to {num_replicas - 1}")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self.start = 0

    def set_epoch(self, epoch: int) -> None:
        self.start = self.start if epoch == self.epoch else 0
        self.epoch = epoch

    def resume(self, epoch: int, samples_seen: int) -> None:
        self.epoch = epoch
        self.start = samples_seen

    def _key(self, index: int) -> bytes:
        text = f"{self.seed}:{self.epoch}:{index}"
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    def __iter__(self) -> Iterator[int]:
        indices = range(len(self.dataset))
        order = sorted(indices, key=self._key) if self.shuffle else list(indices)
        remaining = order[self.start :]
        self.start = 0
        if self.drop_last:
            remaining = remaining[: len(remaining) - len(remaining) % self.num_replicas]
        elif remaining:
            missing = -len(remaining) % self.num_replicas
            beginning = list(remaining)
            while missing > 0:
                remaining = remaining + beginning[:missing]
                missing -= len(beginning)
        return iter(remaining[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        remaining = max(len(self.dataset) - self.start, 0)
        if not self.drop_last:
            remaining += self.num_replicas - 1
        return remaining // self.num_replicas
