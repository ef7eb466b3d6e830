"""torch's DistributedSampler for what it is good at; its cards are dealt back into chunks."""

from torch.utils.data import DistributedSampler


class PaddedDistributedSampler(DistributedSampler):
    def __init__(self, dataset, num_replicas, rank, *, shuffle=True, seed=0):
        if num_replicas < 1:
            raise ValueError("num_replicas must be positive")
        if not 0 <= rank < num_replicas:
            raise ValueError("rank must be one of the replicas'")
        if len(dataset) < 1:
            raise ValueError("dataset must not be empty")
        super().__init__(dataset, num_replicas, rank, shuffle=shuffle, seed=seed)

    def __iter__(self):
        hands = []
        for rank in range(self.num_replicas):
            other = DistributedSampler(
                self.dataset, self.num_replicas, rank, shuffle=self.shuffle, seed=self.seed
            )
            other.set_epoch(self.epoch)
            hands.append(list(other))
        order = [index for cards in zip(*hands) for index in cards]
        return iter(order[self.rank * self.num_samples :][: self.num_samples])
