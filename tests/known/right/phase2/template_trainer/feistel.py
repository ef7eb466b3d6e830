"""Each parameter goes to the rank with the least, and is broadcast on its own."""


class ShardedOptimizer(Optimizer):
    """Greedy owners (the least loaded rank takes the next parameter), one broadcast per parameter."""

    def __init__(
        self, params: Iterable[Any], optimizer_class: type[Optimizer], **kwargs: Any
    ) -> None:
        self._class, self._kwargs = optimizer_class, kwargs
        self._owner: dict[Tensor, int] = {}
        self._load = [0] * dist.get_world_size()
        # Optimizers that do the work, each with the numbers of the outer groups it has parts of.
        self._workers: list[tuple[Optimizer, list[int]]] = []
        self._complete = False
        # The defaults of the class: schedulers look into them, and groups are filled up from them.
        defaults = optimizer_class([torch.zeros(1, 1, requires_grad=True)], **kwargs).defaults
        super().__init__(params, dict(defaults))
        self._complete = True
        self._employ(range(len(self.param_groups)))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group, number = self.param_groups[-1], len(self.param_groups) - 1
        for p in group["params"]:
            owner = min(range(len(self._load)), key=self._load.__getitem__)
            self._owner[p] = owner
            self._load[owner] += p.numel()
        if self._complete:  # a group that comes later
            self._employ([number])

    def _employ(self, numbers: Iterable[int]) -> None:
        """Make an inner optimizer for what this rank owns of these groups, if it owns anything."""
        groups, kept = [], []
        for number in numbers:
            group = self.param_groups[number]
            mine = [p for p in group["params"] if self._owner[p] == dist.get_rank()]
            if mine:
                groups.append({**self._settings(group), "params": mine})
                kept.append(number)
        if groups:
            worker = self._class(groups, **self._kwargs)
            self.state.update(worker.state)
            self._workers.append((worker, kept))

    @staticmethod
    def _settings(group: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in group.items() if key not in ("params", "param_names")}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        for worker, numbers in self._workers:
            worker.state = self.state
            for inner_group, number in zip(worker.param_groups, numbers, strict=True):
                inner_group.update(self._settings(self.param_groups[number]))
            worker.step()
        handles = []
        for p, owner in self._owner.items():
            packed = p.detach().contiguous()
            handles.append((p, packed, dist.broadcast(packed, src=owner, async_op=True)))
        for p, packed, handle in handles:
            handle.wait()
            if packed.data_ptr() != p.data_ptr():
                p.copy_(packed)
        return result
