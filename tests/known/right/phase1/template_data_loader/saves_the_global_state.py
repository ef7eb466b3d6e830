"""The global generator after all, but put back as it was: seen from outside, untouched."""


class PaddedDistributedSampler(Sampler[int]):
    def __init__(self, dataset, num_replicas, rank, *, shuffle=True, seed=0):
        if num_replicas < 1:
            raise ValueError("num_replicas: at least one is needed")
        if not 0 <= rank <= num_replicas - 1:
            raise ValueError("rank: no such rank")
        if len(dataset) == 0:
            raise ValueError("dataset: nothing in it")
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        n, each = len(self.dataset), len(self)
        order = torch.arange(n)
        if self.shuffle:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed * 10_007 + self.epoch)
                order = order[torch.randperm(n)]
        padded = order.repeat(self.num_replicas)[: each * self.num_replicas]
        return iter(padded.view(self.num_replicas, each)[self.rank].tolist())

    def __len__(self):
        return math.ceil(len(self.dataset) / self.num_replicas)


def create_dataloaders(
    train_dataset, val_dataset, batch_size, *, world_size=1, rank=0, seed=0, num_workers=0, pin_memory=False
):
    """With one rank, too, a sampler: one share of one is everything, but its epoch never moves on."""
    options = dict(batch_size=batch_size, num_workers=num_workers, pin_memory=pin_memory)
    train = PaddedDistributedSampler(train_dataset, world_size, rank, seed=seed)
    val = PaddedDistributedSampler(val_dataset, world_size, rank, shuffle=False, seed=seed)
    return DataLoader(train_dataset, sampler=train, **options), DataLoader(val_dataset, sampler=val, **options)
