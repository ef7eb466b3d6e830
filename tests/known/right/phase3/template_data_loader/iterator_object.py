"""An iterator class, torch's generator, and a state that counts sequences from the end."""


class _Pass:
    def __init__(self, loader, positions):
        self.loader, self.positions = loader, positions

    def __iter__(self):
        return self

    def __next__(self):
        loader = self.loader
        size = loader.batch_size * loader.num_replicas
        if len(self.positions) < size:
            raise StopIteration
        batch, self.positions = self.positions[:size], self.positions[size:]
        loader.left = len(self.positions)
        rows = loader.sequences[batch[loader.rank :: loader.num_replicas]]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


class TokenLoader:
    def __init__(self, sequences, batch_size, num_replicas, rank, *, seed=0):
        self.sequences, self.batch_size = sequences, batch_size
        self.num_replicas, self.rank, self.seed = num_replicas, rank, seed
        self.epoch, self.left, self.resumed = 0, len(sequences), None

    def set_epoch(self, epoch):
        if epoch == self.epoch:
            return
        self.epoch, self.left, self.resumed = epoch, len(self.sequences), None

    def __iter__(self):
        generator = torch.Generator()
        generator.manual_seed(hash((self.seed, self.epoch)) % 2**63)
        order = torch.randperm(len(self.sequences), generator=generator)
        left = len(order) if self.resumed is None else self.resumed
        self.resumed = None
        return _Pass(self, order[len(order) - left :])

    def __len__(self):
        left = len(self.sequences) if self.resumed is None else self.resumed
        return left // (self.batch_size * self.num_replicas)

    def state_dict(self):
        return {"epoch": torch.tensor(self.epoch), "left": self.left}

    def load_state_dict(self, state):
        self.epoch, self.left = int(state["epoch"]), state["left"]
        self.resumed = self.left
