"""The rest as an array with a row of N positions; rank r reads its column."""


class ResumableDistributedSampler(Sampler[int]):
    def __init__(self, dataset, num_replicas, rank, *, shuffle=True, seed=0, drop_last=False):
        if num_replicas <= 0:
            raise ValueError(f"{num_replicas=}")
        if not 0 <= rank < num_replicas:
            raise ValueError(f"{rank=}")
        if not len(dataset):
            raise ValueError(f"{dataset=} has no samples")
        self.size, self.columns, self.column = len(dataset), num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.resume(0, 0)

    def set_epoch(self, epoch):
        if epoch != self.epoch:
            self.resume(epoch, 0)

    def resume(self, epoch, samples_seen):
        self.epoch = epoch
        order = np.arange(self.size)
        if self.shuffle:
            np.random.RandomState((1_000_003 * self.seed + epoch) % 2**32).shuffle(order)
        rest = order[samples_seen:]
        rows = len(rest) // self.columns if self.drop_last else -(len(rest) // -self.columns)
        self.rows = np.resize(rest, (rows, self.columns))

    def __iter__(self):
        column = self.rows[:, self.column]
        self.resume(self.epoch, 0)
        yield from column.tolist()

    def __len__(self):
        return len(self.rows)


def shard_without_padding(num_samples, num_replicas, rank):
    ends = np.cumsum([0] + [(num_samples + num_replicas - 1 - r) // num_replicas for r in range(num_replicas)])
    return range(int(ends[rank]), int(ends[rank + 1]))


def split_microbatches(batch, num_microbatches):
    samples = batch[0].shape[0]
    if num_microbatches < 1:
        raise ValueError("num_microbatches < 1")
    if num_microbatches > samples:
        raise ValueError("num_microbatches > samples")
    parts, start = [], 0
    for left in range(num_microbatches, 0, -1):
        size = -(-(samples - start) // left)
        parts.append(tuple(tensor.narrow(0, start, size) for tensor in batch))
        start += size
    return parts
