"""Owners by a running sum, gathered by adding up what is zero where somebody else owns it.

Evaluation pads every share to the same length, and weighs what is padded with nothing.
"""


class ShardedOptimizer(Optimizer):
    def __init__(self, params, optimizer_class, **kwargs):
        super().__init__(params, kwargs)
        self.optimizer_class = optimizer_class
        self.optimizers = []
        for group in self.param_groups:
            self._own(group)

    def _own(self, group):
        rank, size = dist.get_rank(), dist.get_world_size()
        load = self.__dict__.setdefault("loads", torch.zeros(size))
        mine = self.__dict__.setdefault("mine", {})
        for param in group["params"]:
            owner = int(load.argmin())
            load[owner] += param.numel()
            mine[param] = owner == rank
        kept = [p for p in group["params"] if mine[p]]
        if kept:
            own = {k: v for k, v in group.items() if k not in ("params", "param_names")}
            optimizer = self.optimizer_class([{"params": kept, **own}], **self.defaults)
            optimizer.state = self.state  # one dict for all
            self.optimizers.append((group, optimizer))

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        if "optimizers" in self.__dict__:
            self._own(self.param_groups[-1])

    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure() if closure else None
        for group, optimizer in self.optimizers:
            inside = optimizer.param_groups[0]
            inside.update({k: group[k] for k in group if k not in ("params", "param_names")})
            optimizer.step()
        with torch.no_grad():
            for group in self.param_groups:
                for param in group["params"]:
                    if not self.mine[param]:
                        param.zero_()
                    dist.all_reduce(param)
        return loss


def evaluate(model, dataset, loss_fn, batch_size):
    rank, size = dist.get_rank(), dist.get_world_size()
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    rows = -(-len(dataset) // size)
    sums = torch.zeros(3, dtype=torch.float64)
    positions = [rank * rows + k for k in range(rows)]
    for start in range(0, rows, batch_size):
        batch = positions[start : start + batch_size]
        real = [p for p in batch if p < len(dataset)]
        part = torch.zeros(3, dtype=torch.float64)
        if real:
            inputs, targets = zip(*(dataset[p] for p in real))
            inputs, targets = torch.stack(inputs), torch.stack(targets)
            with torch.no_grad():
                outputs = model(inputs)
                part[0] = loss_fn(outputs, targets) * len(real)
                part[1] = (outputs.argmax(1) == targets).sum()
                part[2] = len(real)
        dist.all_reduce(part)
        sums += part
    for module, mode in modes:
        module.training = mode
    loss, hits, count = sums.tolist()
    return {"loss": loss / count, "accuracy": hits / count, "samples": round(count)}
