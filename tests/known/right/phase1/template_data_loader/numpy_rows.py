"""The padded order as an array with a row a rank; old-style numpy state of its own."""


class PaddedDistributedSampler(Sampler[int]):
    def __init__(self, dataset, num_replicas, rank, *, shuffle=True, seed=0):
        if num_replicas <= 0:
            raise ValueError(f"{num_replicas=}")
        if rank not in range(num_replicas):
            raise ValueError(f"{rank=}")
        if len(dataset) == 0:
            raise ValueError(f"{dataset=} has no samples")
        self.shape = (num_replicas, -(len(dataset) // -num_replicas))
        self.n, self.rank, self.shuffle, self.seed, self.epoch = len(dataset), rank, shuffle, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = np.arange(self.n)
        if self.shuffle:
            np.random.RandomState((1_000_003 * self.seed + self.epoch) % 2**32).shuffle(order)
        return iter(np.resize(order, self.shape)[self.rank].tolist())

    def __len__(self):
        return self.shape[1]
