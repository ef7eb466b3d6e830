"""Contiguous shares by elements, each parameter broadcast by its owner as soon as it is stepped."""


class ShardedOptimizer(torch.optim.Optimizer):
    def __init__(self, params, optimizer_class, **kwargs):
        self._class, self._kwargs = optimizer_class, kwargs
        self._inner = None
        self._owners = []  # (parameter, rank), in the order of all groups
        self._ready = False
        super().__init__(params, dict(kwargs))
        self._ready = True
        self._share(0)

    def _share(self, first):
        """Cut what is new into contiguous parts, the emptiest rank first."""
        new = [g for g in self.param_groups[first:]]
        size = dist.get_world_size()
        load = [sum(p.numel() for p, o in self._owners if o == rank) for rank in range(size)]
        total = sum(load) + sum(p.numel() for g in new for p in g["params"])
        order = sorted(range(size), key=lambda rank: load[rank])
        turn = 0
        for group in new:
            for param in group["params"]:
                while load[order[turn]] >= -(-total // size):
                    turn += 1
                load[order[turn]] += param.numel()
                self._owners.append((param, order[turn]))
        mine = {p for p, o in self._owners if o == dist.get_rank()}
        for group in new:
            settings = {k: v for k, v in group.items() if k not in ("params", "param_names")}
            local = {**settings, "params": [p for p in group["params"] if p in mine]}
            if self._inner is None:
                self._inner = self._class([local], **self._kwargs)
            else:
                self._inner.add_param_group(local)
        self.state = self._inner.state

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        if self._ready:
            self._share(len(self.param_groups) - 1)

    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for mine, group in zip(self._inner.param_groups, self.param_groups):
            for key in set(group) - {"params", "param_names"}:
                mine[key] = group[key]
        self._inner.step()
        for param, owner in self._owners:
            dist.broadcast(param.data, src=owner)
        return loss


def evaluate(model, dataset, loss_fn, batch_size):
    """Strided shares, a collective a number."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mode = model.training
    model.eval()
    loss = correct = count = 0.0
    loader = DataLoader(Subset(dataset, range(rank, len(dataset), size)), batch_size)
    with torch.no_grad():
        for inputs, targets in loader:
            outputs = model(inputs)
            loss += loss_fn(outputs, targets).item() * targets.numel()
            correct += (outputs.argmax(1) == targets).sum().item()
            count += targets.numel()
    model.train(mode)

    def over_all_ranks(number):
        number = torch.tensor(number, dtype=torch.float64)
        dist.all_reduce(number)
        return number.item()

    samples = over_all_ranks(count)
    return dict(
        loss=over_all_ranks(loss) / samples,
        accuracy=over_all_ranks(correct) / samples,
        samples=int(samples),
    )
