class PaddedDistributedSampler(Sampler[int]):
    """Works its share out whenever the epoch is set, as tensors."""

    def __init__(self, dataset, num_replicas, rank, *, shuffle=True, seed=0):
        if num_replicas < 1:
            raise ValueError(f"num_replicas={num_replicas}")
        if rank not in range(num_replicas):
            raise ValueError(f"rank={rank}")
        if len(dataset) == 0:
            raise ValueError("the dataset is empty")
        self.data, self.world, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed = shuffle, seed
        self.set_epoch(0)

    def set_epoch(self, epoch):
        count, total = len(self.data), len(self) * self.world
        order = torch.arange(count)
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            order = torch.randperm(count, generator=generator)
        shares = order.repeat(-(-total // count))[:total].view(self.world, -1)  # (rank, index)
        self.mine = shares[self.rank].tolist()

    def __iter__(self):
        return iter(self.mine)

    def __len__(self):
        return math.ceil(len(self.data) / self.world)
