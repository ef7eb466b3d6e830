"""Phase 1: data. Batches come from a batch sampler, built by hand."""

from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler


class PaddedDistributedSampler(Sampler[int]):
    """Contiguous, padded, equal shares."""

    def __init__(
        self, dataset: Sized, num_replicas: int, rank: int, *, shuffle: bool = True, seed: int = 0
    ) -> None:
        if not num_replicas >= 1:
            raise ValueError(f"invalid num_replicas {num_replicas}")
        if not (rank >= 0 and rank < num_replicas):
            raise ValueError(f"invalid rank {rank}: use 0..{num_replicas - 1}")
        if len(dataset) == 0:
            raise ValueError("invalid dataset: it is empty")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)
        if self.shuffle:
            # Draw the epoch's own seed from a generator that the seed started: no sum of the two,
            # which would make epoch 1 of seed 0 the same as epoch 0 of seed 1.
            outer = torch.Generator().manual_seed(self.seed)
            start = int(torch.randint(2**31, (), generator=outer))
            inner = torch.Generator().manual_seed(start ^ (self.epoch * 2654435761 % 2**32))
            order = torch.randperm(size, generator=inner)
        else:
            order = torch.arange(size)
        per_rank = len(self)
        repeats = math.ceil(per_rank * self.num_replicas / size)
        padded = order.repeat(repeats)[: per_rank * self.num_replicas]
        yield from padded.chunk(self.num_replicas)[self.rank].tolist()

    def __len__(self) -> int:
        return math.ceil(len(self.dataset) / self.num_replicas)


def create_dataloaders(
    train_dataset: Dataset,
    val_dataset: Dataset,
    batch_size: int,
    *,
    world_size: int = 1,
    rank: int = 0,
    seed: int = 0,
    num_workers: int = 0,
    pin_memory: bool = False,
) -> tuple[DataLoader, DataLoader]:
    if world_size > 1:
        train_sampler: Sampler = PaddedDistributedSampler(train_dataset, world_size, rank, seed=seed)
        val_sampler: Sampler = PaddedDistributedSampler(val_dataset, world_size, rank, shuffle=False)
    else:
        train_sampler = RandomSampler(train_dataset, generator=torch.Generator().manual_seed(seed))
        val_sampler = SequentialSampler(val_dataset)
    loaders = [
        DataLoader(
            dataset,
            batch_sampler=BatchSampler(sampler, batch_size, drop_last=False),
            num_workers=num_workers,
            pin_memory=pin_memory,
        )
        for dataset, sampler in ((train_dataset, train_sampler), (val_dataset, val_sampler))
    ]
    return loaders[0], loaders[1]
