"""torch's generator, and the padding as GUIDELINES draws it: repeat, cut, slice."""


class PaddedDistributedSampler(Sampler):
    def __init__(self, dataset, num_replicas, rank, *, shuffle=True, seed=0):
        if num_replicas < 1:
            raise ValueError("num_replicas < 1")
        if rank < 0 or rank >= num_replicas:
            raise ValueError("rank out of range")
        if not len(dataset):
            raise ValueError("dataset has no samples")
        self.num_samples = -(-len(dataset) // num_replicas)
        self.total_size = self.num_samples * num_replicas
        self.dataset, self.rank, self.shuffle, self.seed = dataset, rank, shuffle, seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        n = len(self.dataset)
        if self.shuffle:
            g = torch.Generator()
            g.manual_seed(self.seed + self.epoch)
            indices = torch.randperm(n, generator=g).tolist()
        else:
            indices = list(range(n))
        indices *= math.ceil(self.total_size / n)
        start = self.rank * self.num_samples
        return iter(indices[start : start + self.num_samples])

    def __len__(self):
        return self.num_samples
