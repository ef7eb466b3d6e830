"""Strides of numpy for the rows, cumulative ends for the mask, batches as one array."""

from numpy.lib.stride_tricks import sliding_window_view


def pack_documents(documents, sequence_length, eos):
    if sequence_length <= 0:
        raise ValueError(f"sequence_length is {sequence_length}")
    parts = [np.append(document.numpy(), eos) for document in documents]
    stream = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    if stream.size < sequence_length + 1:
        raise ValueError(f"{stream.size} tokens do not fill a row: sequence_length is too large")
    windows = sliding_window_view(stream, sequence_length + 1)
    return torch.from_numpy(windows[::sequence_length].astype(np.int64))


def document_mask(inputs, eos):
    begins = torch.roll(inputs == eos, 1, dims=1)
    begins[:, 0] = True
    number = begins.cumsum(1)
    index = torch.arange(inputs.shape[1])
    same = number.unsqueeze(-1).eq(number.unsqueeze(-2))
    return torch.logical_and(same, index[:, None] >= index)


class TokenLoader:
    def __init__(self, sequences, batch_size, num_replicas, rank, *, seed=0):
        self.data, self.shape, self.rank, self.seed = (
            sequences,
            (batch_size, num_replicas),
            rank,
            seed,
        )
        self.place, self.resumes = (0, 0), False

    def set_epoch(self, epoch):
        if epoch != self.place[0]:
            self.place, self.resumes = (epoch, 0), False

    def __iter__(self):
        epoch, done = self.place[0], self.place[1] if self.resumes else 0
        self.resumes = False
        order = np.random.Generator(np.random.PCG64([epoch, self.seed])).permutation(len(self.data))
        rest = order[done:]
        whole = rest[: len(rest) // (self.shape[0] * self.shape[1]) * self.shape[0] * self.shape[1]]
        for number, rows in enumerate(whole.reshape(-1, *self.shape), 1):
            batch = self.data[torch.from_numpy(rows[:, self.rank].copy())]
            self.place = (epoch, done + number * rows.size)
            yield batch[:, :-1], batch[:, 1:]

    def state_dict(self):
        return {"place": list(self.place)}

    def load_state_dict(self, state):
        self.place, self.resumes = tuple(state["place"]), True
