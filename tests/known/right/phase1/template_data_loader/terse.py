"""Phase 1, data. Short on purpose."""


class PaddedDistributedSampler(Sampler[int]):
    def __init__(self, dataset, num_replicas, rank, *, shuffle=True, seed=0):
        for bad, name in ((num_replicas < 1, "num_replicas"), (not 0 <= rank < num_replicas, "rank"), (not len(dataset), "dataset")):
            if bad: raise ValueError(f"bad {name}")
        self.m, self.n, self.r, self.mix, self.seed, self.epoch = len(dataset), num_replicas, rank, shuffle, seed, 0

    def set_epoch(self, epoch): self.epoch = epoch
    def __len__(self): return -(-self.m // self.n)

    def __iter__(self):
        g = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        o, k = torch.randperm(self.m, generator=g) if self.mix else torch.arange(self.m), len(self)
        return iter(o[torch.arange(self.r * k, self.r * k + k) % self.m].tolist())


def create_dataloaders(train_dataset, val_dataset, batch_size, *, world_size=1, rank=0, seed=0, num_workers=0, pin_memory=False):
    kw, g = dict(batch_size=batch_size, num_workers=num_workers, pin_memory=pin_memory), torch.Generator().manual_seed(seed)
    if world_size == 1: return DataLoader(train_dataset, shuffle=True, generator=g, **kw), DataLoader(val_dataset, **kw)
    return tuple(DataLoader(d, sampler=PaddedDistributedSampler(d, world_size, rank, shuffle=s, seed=seed), **kw) for d, s in ((train_dataset, True), (val_dataset, False)))
