"""Phase 1: shares and loaders."""

import contextlib


@contextlib.contextmanager
def borrowed_global_generator(seed):
    """Inside, torch's global (CPU) generator starts from `seed`; outside, nobody will know."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def make_order(total, shuffle, seed):
    epoch = 0

    def set_epoch(value):
        nonlocal epoch
        epoch = value

    def order():
        if not shuffle:
            return list(range(total))
        # torch's generator on the CPU listens to 32 bits only, so mix both numbers into these
        with borrowed_global_generator(((seed * 0x9E3779B1) ^ (epoch * 0x85EBCA6B)) & 0xFFFFFFFF):
            return torch.randperm(total).tolist()

    return order, set_epoch


class PaddedDistributedSampler(Sampler):
    def __init__(self, dataset, num_replicas, rank, *, shuffle=True, seed=0):
        if num_replicas < 1:
            raise ValueError("num_replicas: there has to be at least one")
        if not 0 <= rank < num_replicas:
            raise ValueError("rank: no such rank in this world")
        if not len(dataset):
            raise ValueError("dataset: nothing in it")
        total = len(dataset)
        size = -(-total // num_replicas)
        order, self.set_epoch = make_order(total, shuffle, seed)

        def indices():
            ring = order()
            while len(ring) < size * num_replicas:
                ring += ring[:total]
            return ring[rank * size:][:size]

        self.indices, self.size = indices, size

    def __iter__(self):
        return iter(self.indices())

    def __len__(self):
        return self.size


def create_dataloaders(train_dataset, val_dataset, batch_size, *, world_size=1, rank=0, seed=0,
                       num_workers=0, pin_memory=False):
    def loader(dataset, **more):
        return DataLoader(dataset, batch_size=batch_size, num_workers=num_workers,
                          pin_memory=pin_memory, **more)

    def sharded(dataset, shuffle):
        return loader(dataset, sampler=PaddedDistributedSampler(
            dataset, world_size, rank, shuffle=shuffle, seed=seed))

    if world_size > 1:
        return sharded(train_dataset, True), sharded(val_dataset, False)
    g = torch.Generator()
    g.manual_seed(seed)
    return loader(train_dataset, shuffle=True, generator=g), loader(val_dataset)
