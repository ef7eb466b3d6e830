"""Phase 1, first file. Index arithmetic belongs to numpy."""

import numpy as np


class PaddedDistributedSampler(Sampler[int]):
    """Row r of the (N, ceil(M/N)) matrix that the padded order makes."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        if num_replicas < 1:
            raise ValueError("num_replicas < 1")
        if rank < 0 or rank >= num_replicas:
            raise ValueError("rank is not in [0, num_replicas)")
        if len(dataset) == 0:
            raise ValueError("dataset: no samples to share")
        self.num_samples = len(dataset)
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = int(epoch)

    def _order(self) -> np.ndarray:
        order = np.arange(self.num_samples)
        if self.shuffle:
            # entropy must not be negative, so a sign goes in as a word of its own
            entropy = [abs(self.seed), int(self.seed < 0), self.epoch]
            np.random.default_rng(np.random.SeedSequence(entropy)).shuffle(order)
        return order

    def __iter__(self) -> Iterator[int]:
        shape = self.num_replicas, len(self)
        table = np.resize(self._order(), shape)  # np.resize repeats from the start
        return map(int, table[self.rank])

    def __len__(self) -> int:
        return int(np.ceil(self.num_samples / self.num_replicas))


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
    train_args: dict = {}
    val_args: dict = {}
    if world_size > 1:
        train_args["sampler"] = PaddedDistributedSampler(
            train_dataset, world_size, rank, shuffle=True, seed=seed
        )
        val_args["sampler"] = PaddedDistributedSampler(
            val_dataset, world_size, rank, shuffle=False
        )
    else:
        rng = torch.Generator()
        rng.manual_seed(seed)
        train_args.update(shuffle=True, generator=rng)
        val_args.update(shuffle=False)
    for args in (train_args, val_args):
        args.update(batch_size=batch_size, num_workers=num_workers, pin_memory=pin_memory)
    return DataLoader(train_dataset, **train_args), DataLoader(val_dataset, **val_args)
