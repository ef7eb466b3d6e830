"""Hooks on autograd's accumulation nodes; updated shares and tallies are gathered as objects."""

import functools
import weakref

from torch.utils.data import Subset


@dataclass(eq=False)
class _Flight:
    """A bucket under way: its flat sum, and the handle to wait for."""

    flat: Tensor
    work: Any


class BucketedGradientAverager:
    """Buckets that leave from a hook on autograd's accumulation nodes.

    When a bucket leaves it takes the gradients with it (`grad` is None until `finish`). A backward
    that comes later under `no_sync` then makes fresh gradients, and these are exactly what is
    still to be sent: a second round, if any rank has some.
    """

    def __init__(self, model: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        trainable = [p for p in model.parameters() if p.requires_grad]
        self._buckets = self._partition(list(reversed(trainable)), bucket_cap_mb * (1 << 20))
        self._bucket_of = {p: number for number, bucket in enumerate(self._buckets) for p in bucket}
        self._waiting_for = [len(bucket) for bucket in self._buckets]
        self._arrived: set[nn.Parameter] = set()
        self._flights: list[_Flight] = []
        self._enabled = True
        self._nodes = []  # a node lives as long as somebody holds it, and its hook with it
        reference = weakref.ref(self)
        for p in trainable:
            with torch.enable_grad():
                node = p.expand_as(p).grad_fn.next_functions[0][0]
            handle = node.register_hook(functools.partial(self._on_accumulated, reference, weakref.ref(p)))
            self._nodes.append((node, handle))
        self._finalizer = weakref.finalize(self, self._remove, list(self._nodes))

    @staticmethod
    def _remove(nodes: list[tuple[Any, Any]]) -> None:
        for _, handle in nodes:
            handle.remove()

    @staticmethod
    def _partition(params: list[nn.Parameter], cap: float) -> list[list[nn.Parameter]]:
        buckets: list[list[nn.Parameter]] = []
        current: dict[Any, list[nn.Parameter]] = {}
        for p in params:
            kind = (p.dtype, p.device)
            bucket = current.get(kind)
            if bucket is not None and sum(q.nbytes for q in bucket) + p.nbytes <= cap:
                bucket.append(p)
            else:
                current[kind] = [p]
                buckets.append(current[kind])
        return buckets

    @staticmethod
    def _on_accumulated(reference: Any, parameter: Any, *_: Any) -> None:
        averager, p = reference(), parameter()
        if averager is None or p is None or not averager._enabled:
            return
        number = averager._bucket_of[p]
        if p not in averager._arrived and number >= len(averager._flights):
            averager._arrived.add(p)
            averager._waiting_for[number] -= 1
        while len(averager._flights) < len(averager._buckets) and averager._waiting_for[len(averager._flights)] == 0:
            averager._flights.append(averager._depart(averager._buckets[len(averager._flights)]))

    @staticmethod
    @torch.no_grad()
    def _depart(bucket: list[nn.Parameter]) -> _Flight:
        pieces = []
        for p in bucket:
            pieces.append(torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten())
            p.grad = None
        flat = torch.cat(pieces).div_(dist.get_world_size())
        return _Flight(flat, dist.all_reduce(flat, async_op=True))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        previous = self._enabled
        self._enabled = False
        try:
            yield
        finally:
            self._enabled = previous

    @torch.no_grad()
    def finish(self) -> None:
        if not self._buckets:
            return
        for bucket in self._buckets[: len(self._flights)]:
            if any(p.grad is not None for p in bucket):
                own = 1
                break
        else:
            own = 0
        for bucket in self._buckets[len(self._flights) :]:
            self._flights.append(self._depart(bucket))
        mine = torch.tensor([own], device=self._buckets[0][0].device)
        everyone = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine)
        rounds = [self._flights]
        if any(int(late) for late in everyone):
            rounds.append([self._depart(bucket) for bucket in self._buckets])
        for flights in rounds:
            for flight in flights:
                flight.work.wait()
        for number, bucket in enumerate(self._buckets):
            mean = sum((flights[number].flat for flights in rounds[1:]), rounds[0][number].flat)
            start = 0
            for p in bucket:
                p.grad = torch.empty_like(p)
                p.grad.copy_(mean[start : start + p.numel()].view(p.shape))
                start += p.numel()
        self._flights = []
        self._arrived.clear()
        self._waiting_for = [len(bucket) for bucket in self._buckets]


class ShardedOptimizer(Optimizer):
    """Sorted by size and dealt out like cards; updated shares are gathered as objects."""

    def __init__(
        self, params: Iterable[Any], optimizer_class: type[Optimizer], **kwargs: Any
    ) -> None:
        self.optimizer_class = optimizer_class
        self.optimizer_kwargs = kwargs
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.owned_elements = [0] * self.world
        self.owners: dict[int, int] = {}
        self.inner: list[Optimizer | None] = []  # one per group
        dummy = optimizer_class([torch.nn.Parameter(torch.empty(1, 1))], **kwargs)
        super().__init__(params, dummy.defaults.copy())

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        # Larger ones first, in rounds; a round starts with the rank that has had least so far.
        # Then the ranks never differ by more than the largest parameter.
        seats = sorted(range(self.world), key=lambda rank: (self.owned_elements[rank], rank))
        by_size = sorted(group["params"], key=lambda p: -p.numel())
        for turn, p in enumerate(by_size):
            owner = seats[turn % self.world]
            self.owners[id(p)] = owner
            self.owned_elements[owner] += p.numel()
        mine = self._mine(group)
        optimizer = None
        if mine:
            optimizer = self.optimizer_class([{**self._options(group), "params": mine}], **self.optimizer_kwargs)
            self.state.update(optimizer.state)
            optimizer.state = self.state
        self.inner.append(optimizer)

    def _mine(self, group: dict[str, Any]) -> list[Tensor]:
        return [p for p in group["params"] if self.owners[id(p)] == self.rank]

    def _options(self, group: dict[str, Any]) -> dict[str, Any]:
        return {name: group[name] for name in group if name not in {"params", "param_names"}}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        updated: list[list[Tensor]] = []
        for group, optimizer in zip(self.param_groups, self.inner, strict=True):
            if optimizer is not None:
                optimizer.param_groups[0].update(self._options(group))
                optimizer.state = self.state
                optimizer.step()
            updated.append([p.detach().cpu() for p in self._mine(group)])
        shares: list[Any] = [None] * self.world
        dist.all_gather_object(shares, updated)
        with torch.no_grad():
            for rank, share in enumerate(shares):
                if rank == self.rank:
                    continue
                for group, values in zip(self.param_groups, share, strict=True):
                    theirs = (p for p in group["params"] if self.owners[id(p)] == rank)
                    for p, value_of_owner in zip(theirs, values, strict=True):
                        p.copy_(value_of_owner)
        return value


@dataclass
class _Tally:
    loss: float = 0.0
    correct: int = 0
    samples: int = 0

    def __add__(self, other: _Tally) -> _Tally:
        return _Tally(self.loss + other.loss, self.correct + other.correct, self.samples + other.samples)


def _tally(model: nn.Module, loader: DataLoader, loss_fn: LossFunction) -> _Tally:
    device = next(model.parameters()).device
    result = _Tally()
    for inputs, targets in loader:
        targets = targets.to(device)
        outputs = model(inputs.to(device))
        n = targets.shape[0]
        hits = int((outputs.max(dim=1).indices == targets).sum())
        result = result + _Tally(float(loss_fn(outputs, targets)) * n, hits, n)
    return result


def evaluate(
    model: nn.Module, dataset: Dataset, loss_fn: LossFunction, batch_size: int
) -> dict[str, Any]:
    """Every rank's tally is gathered as an object; counts stay whole numbers."""
    indices = shard_without_padding(len(dataset), dist.get_world_size(), dist.get_rank())
    loader = DataLoader(Subset(dataset, list(indices)), batch_size)
    was_training = {name: module.training for name, module in model.named_modules()}
    try:
        model.eval()
        with torch.no_grad():
            mine = _tally(model, loader, loss_fn)
    finally:
        for name, module in model.named_modules():
            module.training = was_training[name]
    tallies: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(tallies, mine)
    total = sum(tallies, _Tally())
    samples = max(1, total.samples)
    return {"loss": total.loss / samples, "accuracy": total.correct / samples, "samples": total.samples}
