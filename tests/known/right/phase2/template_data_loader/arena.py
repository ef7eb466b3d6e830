"""Shares from the global generator, borrowed and given back; the rest is cut fairly each time."""

import math

import torch


class ResumableDistributedSampler(Sampler[int]):
    """Strided shares from the global generator, borrowed inside `fork_rng` and given back."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas < 1:
            raise ValueError(f"num_replicas has to be positive, got {num_replicas}")
        if rank >= num_replicas or rank < 0:
            raise ValueError(f"rank has to be in [0, {num_replicas}), got {rank}")
        self.num_samples = len(dataset)
        if self.num_samples < 1:
            raise ValueError("dataset has to hold at least one sample")
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self.samples_seen = 0

    def set_epoch(self, epoch: int) -> None:
        if epoch == self.epoch:
            return
        self.resume(epoch, 0)

    def resume(self, epoch: int, samples_seen: int) -> None:
        self.epoch = epoch
        self.samples_seen = samples_seen

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            with torch.random.fork_rng(devices=[]):
                # Two draws, so that the seed and the epoch can't be taken for each other.
                torch.default_generator.manual_seed(self.seed)
                base = int(torch.randint(2**31, (1,)))
                torch.default_generator.manual_seed(base * 1_000_003 + self.epoch)
                order = torch.randperm(self.num_samples)
        else:
            order = torch.arange(self.num_samples)
        rows = len(self)
        rest = order[self.samples_seen :]
        self.samples_seen = 0
        if rows == 0:
            return iter(())
        wanted = rows * self.num_replicas
        rest = rest.repeat(-(-wanted // rest.numel()))[:wanted]
        return iter(rest.view(rows, self.num_replicas)[:, self.rank].tolist())

    def __len__(self) -> int:
        rest = max(0, self.num_samples - self.samples_seen)
        share = rest / self.num_replicas
        return math.floor(share) if self.drop_last else math.ceil(share)


def shard_without_padding(num_samples: int, num_replicas: int, rank: int) -> range:
    """Boundaries from the far end, where rounding down makes the later shards the smaller ones."""

    def begin(r: int) -> int:
        return num_samples - sum((num_samples + q) // num_replicas for q in range(num_replicas - r))

    return range(begin(rank), begin(rank + 1))


def split_microbatches(batch: Sequence[Tensor], num_microbatches: int) -> list[tuple[Tensor, ...]]:
    """Walk along dim 0 with `narrow`, taking a fair part of the rest each time."""
    length = batch[0].shape[0]
    if num_microbatches < 1:
        raise ValueError("num_microbatches must be at least 1")
    if length < num_microbatches:
        raise ValueError(f"num_microbatches={num_microbatches}, but there are {length} samples only")
    start = 0
    result: list[tuple[Tensor, ...]] = []
    for parts_left in range(num_microbatches, 0, -1):
        size = -(-(length - start) // parts_left)
        result.append(tuple(t.narrow(0, start, size) for t in batch))
        start += size
    return result
