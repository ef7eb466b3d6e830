"""Phase 1, data loading. A permutation from first principles: splitmix64 and Fisher-Yates."""

from collections.abc import Generator

MASK = 0xFFFF_FFFF_FFFF_FFFF


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def splitmix64(*words: int) -> Generator[int, None, None]:
    """An endless stream of 64-bit numbers from some integers."""
    state = 0
    for word in words:
        state = mix((state + (word & MASK) + 0x9E3779B97F4A7C15) & MASK)
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        yield mix(state)


def permutation(size: int, *words: int) -> list[int]:
    stream = splitmix64(*words)
    deck = list(range(size))
    for last in range(size - 1, 0, -1):
        # (stream * n) >> 64 maps to 0..n-1; its bias is far below anything one could notice
        other = (next(stream) * (last + 1)) >> 64
        deck[last], deck[other] = deck[other], deck[last]
    return deck


class PaddedDistributedSampler(Sampler[int]):
    __slots__ = ("_total", "_per_rank", "_first", "_seed", "_shuffle", "_epoch")

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        total = len(dataset)
        problems = {
            "num_replicas": num_replicas < 1,
            "rank": num_replicas >= 1 and not 0 <= rank <= num_replicas - 1,
            "dataset": total == 0,
        }
        for name, wrong in problems.items():
            if wrong:
                raise ValueError(f"{name} makes no sense: {total if name == 'dataset' else locals()[name]}")
        self._total = total
        self._per_rank = math.ceil(total / num_replicas)
        self._first = rank * self._per_rank
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        order = permutation(self._total, self._seed, self._epoch) if self._shuffle else range(self._total)
        return (order[i % self._total] for i in range(self._first, self._first + self._per_rank))

    def __len__(self) -> int:
        return self._per_rank


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
    result = []
    for dataset, is_train in ((train_dataset, True), (val_dataset, False)):
        generator = torch.Generator()
        generator.manual_seed(seed)
        sampler = (
            PaddedDistributedSampler(dataset, world_size, rank, shuffle=is_train, seed=seed)
            if world_size > 1
            else None
        )
        result.append(
            DataLoader(
                dataset,
                batch_size=batch_size,
                shuffle=is_train and sampler is None,
                sampler=sampler,
                num_workers=num_workers,
                pin_memory=pin_memory,
                generator=generator,  # also for the workers' seeds: the global one is left alone
            )
        )
    train_loader, val_loader = result
    return train_loader, val_loader
