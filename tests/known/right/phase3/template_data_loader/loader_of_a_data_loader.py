"""A DataLoader yields the batches; a batch sampler knows where to begin."""

import numpy
from torch.utils.data import DataLoader, TensorDataset


def pack_documents(documents, sequence_length, eos):
    if sequence_length < 1:
        raise ValueError("sequence_length must be positive")
    stream = []
    for document in documents:
        stream.extend(document.tolist())
        stream.append(eos)
    rows = [
        stream[start : start + sequence_length + 1]
        for start in range(0, len(stream) - sequence_length, sequence_length)
    ]
    if not rows:
        raise ValueError(f"{len(stream)} tokens are less than a row of {sequence_length + 1}")
    return torch.tensor(rows, dtype=torch.int64)


def document_mask(inputs, eos):
    batch, length = inputs.shape
    mask = torch.zeros(batch, length, length, dtype=torch.bool)
    for row in range(batch):
        first = 0
        for query in range(length):
            mask[row, query, first : query + 1] = True
            if inputs[row, query] == eos:
                first = query + 1
    return mask


class _Rest:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        loader = self.loader
        begin, loader._begin = loader._begin, 0
        order = numpy.random.default_rng([loader.seed, loader.epoch]).permutation(loader.count)
        loader._state = {"epoch": loader.epoch, "taken": begin}
        size = loader.batch_size * loader.num_replicas
        for start in range(begin, loader.count - size + 1, size):
            loader._state = {"epoch": loader.epoch, "taken": start + size}
            yield order[start : start + size][loader.rank :: loader.num_replicas].tolist()


class TokenLoader:
    def __init__(self, sequences, batch_size, num_replicas, rank, *, seed=0):
        self.batch_size, self.num_replicas, self.rank = batch_size, num_replicas, rank
        self.count, self.seed, self.epoch, self._begin = len(sequences), seed, 0, 0
        self._state = {"epoch": 0, "taken": 0}
        dataset = TensorDataset(sequences[:, :-1], sequences[:, 1:])
        self._loader = DataLoader(dataset, batch_sampler=_Rest(self))

    def set_epoch(self, epoch):
        if epoch != self.epoch:
            self.epoch, self._begin = epoch, 0
            self._state = {"epoch": epoch, "taken": 0}

    def __iter__(self):
        for inputs, targets in self._loader:
            yield inputs, targets

    def state_dict(self):
        return dict(self._state)

    def load_state_dict(self, state):
        self._state = dict(state)
        self.epoch, self._begin = state["epoch"], state["taken"]
