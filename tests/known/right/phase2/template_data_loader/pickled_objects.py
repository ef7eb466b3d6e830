"""Orders are dealt out like cards; a share is a slice of a range."""

import random
from itertools import chain, cycle, islice


class ResumableDistributedSampler(Sampler[int]):
    """Deals the epoch's order out like cards; a `random.Random` of its own shuffles them."""

    def __init__(self, dataset: Sized, num_replicas: int, rank: int, *, shuffle: bool = True,
                 seed: int = 0, drop_last: bool = False) -> None:
        self.total = len(dataset)
        for wrong, text in (
            (num_replicas < 1, f"num_replicas={num_replicas} must be positive"),
            (rank < 0 or rank >= num_replicas, f"rank={rank} is outside the world of {num_replicas}"),
            (self.total == 0, "dataset must not be empty"),
        ):
            if wrong:
                raise ValueError(text)
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self._position = (0, 0)  # epoch, samples of it that are done

    def set_epoch(self, epoch: int) -> None:
        if epoch != self._position[0]:
            self._position = (epoch, 0)

    def resume(self, epoch: int, samples_seen: int) -> None:
        self._position = (epoch, min(samples_seen, self.total))

    def __iter__(self) -> Iterator[int]:
        epoch, done = self._position
        count = len(self)
        self._position = (epoch, 0)
        cards = list(range(self.total))
        if self.shuffle:
            # A string seed goes through SHA-512: stable over processes, unlike hash().
            random.Random(f"order/{self.seed}/{epoch}").shuffle(cards)
        cards = cards[done:]
        dealt = islice(cycle(cards), self.rank, count * self.num_replicas, self.num_replicas)
        return chain(list(dealt))

    def __len__(self) -> int:
        left = self.total - self._position[1]
        if self.drop_last:
            return left // self.num_replicas
        return -(-left // self.num_replicas)


def shard_without_padding(num_samples: int, num_replicas: int, rank: int) -> range:
    """Slice the range of all samples; a slice of a range is a range."""
    ends = [0]
    for other in range(rank + 1):
        # As many as a strided share would have: larger for the lower ranks.
        ends.append(ends[-1] + len(range(other, num_samples, num_replicas)))
    return range(num_samples)[ends[-2] : ends[-1]]


def split_microbatches(batch: Sequence[Tensor], num_microbatches: int) -> list[tuple[Tensor, ...]]:
    """The rule of `shard_without_padding`, applied to rows."""
    rows = batch[0].shape[0]
    if num_microbatches < 1:
        raise ValueError(f"num_microbatches is {num_microbatches}: fewer than one part")
    if num_microbatches > rows:
        raise ValueError(f"num_microbatches is {num_microbatches}: more than {rows} samples")
    parts = []
    for part in range(num_microbatches):
        share = shard_without_padding(rows, num_microbatches, part)
        parts.append(tuple(tensor[share.start : share.stop] for tensor in batch))
    return parts
