"""Parameters dealt out largest first, and gathered as pickled objects; evaluation by objects, too."""


class ShardedOptimizer(Optimizer):
    def __init__(self, params, optimizer_class, **kwargs):
        groups = list(params)
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        self.optimizer_class = optimizer_class
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.load = [0] * self.size
        self.owner = {}
        self.inner = []  # by group: an optimizer, or None where nothing of it is mine
        super().__init__(groups, kwargs)

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for param in sorted(group["params"], key=lambda p: -p.numel()):
            lightest = self.load.index(min(self.load))
            self.owner[param] = lightest
            self.load[lightest] += param.numel()
        mine = [p for p in group["params"] if self.owner[p] == self.rank]
        options = {k: v for k, v in group.items() if k not in ("params", "param_names")}
        self.inner.append(self.optimizer_class(mine, **options) if mine else None)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, inner in zip(self.param_groups, self.inner):
            if inner is None:
                continue
            for name in inner.param_groups[0]:
                if name not in ("params", "param_names") and name in group:
                    inner.param_groups[0][name] = group[name]
            inner.step()
            self.state.update(inner.state)
        everything = [p for group in self.param_groups for p in group["params"]]
        mine = {i: p.tolist() for i, p in enumerate(everything) if self.owner[p] == self.rank}
        shares = [None] * self.size
        dist.all_gather_object(shares, mine)
        for share in shares:
            for index, values in share.items():
                param = everything[index]
                param.copy_(torch.tensor(values, dtype=torch.float64).to(param))
        return loss


def evaluate(model, dataset, loss_fn, batch_size):
    rank, size = dist.get_rank(), dist.get_world_size()
    was_training = model.training
    model.eval()
    seen = []
    indices = list(range(rank, len(dataset), size))
    with torch.inference_mode():
        for start in range(0, len(indices), batch_size):
            samples = [dataset[i] for i in indices[start : start + batch_size]]
            inputs = torch.stack([x for x, _ in samples])
            targets = torch.stack([torch.as_tensor(y) for _, y in samples])
            outputs = model(inputs)
            hits = int((outputs.argmax(-1) == targets).sum())
            seen.append((float(loss_fn(outputs, targets)), hits, len(samples)))
    model.train(was_training)
    everyone = [None] * size
    dist.all_gather_object(everyone, seen)
    rows = [row for rows in everyone for row in rows]
    total = sum(n for _, _, n in rows)
    return {
        "samples": total,
        "loss": sum(loss * n for loss, _, n in rows) / total,
        "accuracy": sum(hits for _, hits, _ in rows) / total,
    }
