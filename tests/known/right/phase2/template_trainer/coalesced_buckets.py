"""Gradients go as they are, in one coalesced all-reduce a bucket; a heap finds the owners."""

import heapq
import itertools
import weakref
from contextlib import nullcontext

import torch.nn.functional as F
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.utils.data import default_collate


class _Ring:
    """This rank's place in the circle."""

    def __init__(self) -> None:
        self.size = dist.get_world_size()
        self.rank = dist.get_rank()
        self.after = (self.rank + 1) % self.size
        self.before = (self.rank - 1) % self.size

    def shift(self, outgoing: Tensor) -> Tensor:
        """Give a chunk to the rank after, and return the one from the rank before."""
        incoming = torch.empty_like(outgoing)
        pending = dist.irecv(incoming, src=self.before)
        dist.send(outgoing, dst=self.after)
        pending.wait()
        return incoming


def ring_all_reduce(tensor: Tensor) -> None:
    """Chunks wander around the ring twice; `irecv` is posted before the blocking `send`."""
    ring = _Ring()
    if ring.size == 1 or tensor.numel() == 0:
        return
    with torch.no_grad():
        values = tensor.reshape(-1)
        missing = -values.numel() % ring.size
        own = list(F.pad(values, (0, missing)).chunk(ring.size))
        moving = own[ring.rank].clone()
        for step in range(1, ring.size):
            moving = ring.shift(moving)
            moving += own[(ring.rank - step) % ring.size]
        # `moving` is now the whole sum of the chunk after this rank's number.
        place = (ring.rank + 1) % ring.size
        total: list[Tensor] = [moving] * ring.size
        for step in range(1, ring.size):
            moving = ring.shift(moving)
            total[(place - step) % ring.size] = moving
        tensor.copy_(torch.cat(total)[: values.numel()].reshape(tensor.shape))


class BucketedGradientAverager:
    """No flattening: the gradients of a bucket go as they are, in one coalesced all-reduce."""

    def __init__(self, model: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        budget = bucket_cap_mb * 2**20
        self.buckets: list[list[nn.Parameter]] = []
        room: dict[Any, float] = {}
        last: dict[Any, list[nn.Parameter]] = {}
        for p in reversed(list(filter(lambda q: q.requires_grad, model.parameters()))):
            kind = f"{p.dtype} on {p.device}"
            if kind not in last or p.nbytes > room[kind]:
                last[kind], room[kind] = [], budget
                self.buckets.append(last[kind])
            last[kind].append(p)
            room[kind] -= p.nbytes
        self._number = {p: k for k, bucket in enumerate(self.buckets) for p in bucket}
        self._todo = [set(bucket) for bucket in self.buckets]
        self._sent: list[tuple[list[Tensor], Any]] = []
        self._muted = 0
        itself = weakref.ref(self)

        def accumulated(p: Tensor) -> None:
            averager = itself()
            if averager is not None and not averager._muted:
                averager._ready(p)

        self._handles = [p.register_post_accumulate_grad_hook(accumulated) for p in self._number]

    def __del__(self) -> None:
        for handle in getattr(self, "_handles", ()):
            handle.remove()

    def _ready(self, p: Tensor) -> None:
        self._todo[self._number[p]].discard(p)
        while len(self._sent) < len(self.buckets) and not self._todo[len(self._sent)]:
            self._sent.append(self._send(self.buckets[len(self._sent)]))

    @staticmethod
    def _send(bucket: list[nn.Parameter]) -> tuple[list[Tensor], Any]:
        """Take the gradients away from the parameters and all-reduce them, without waiting."""
        grads = [torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in bucket]
        grads = [g.contiguous() for g in grads]
        for p in bucket:
            p.grad = None
        device = bucket[0].device if bucket[0].is_cuda else None  # gloo wants none
        with _coalescing_manager(device=device, async_ops=True) as works:
            for g in grads:
                dist.all_reduce(g)
        return grads, works

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._muted += 1
        try:
            yield
        finally:
            self._muted -= 1

    @torch.no_grad()
    def finish(self) -> None:
        if not self.buckets:
            return
        overtaken = any(p.grad is not None for bucket in self.buckets[: len(self._sent)] for p in bucket)
        while len(self._sent) < len(self.buckets):
            self._sent.append(self._send(self.buckets[len(self._sent)]))
        flag = torch.tensor([1.0 if overtaken else 0.0], device=self.buckets[0][0].device)
        dist.all_reduce(flag)
        second = [self._send(bucket) for bucket in self.buckets] if flag.item() > 0 else []
        for _, works in (*self._sent, *second):
            works.wait()
        world = dist.get_world_size()
        for k, bucket in enumerate(self.buckets):
            grads = self._sent[k][0]
            if second:
                torch._foreach_add_(grads, second[k][0])
            torch._foreach_div_(grads, world)
            for p, g in zip(bucket, grads, strict=True):
                p.grad = g
        self._sent.clear()
        self._todo = [set(bucket) for bucket in self.buckets]


def _weighted(loss_fn: LossFunction, total: int) -> LossFunction:
    """A loss that adds up over the parts of a batch of `total` samples to the batch's mean."""

    def part(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss_fn(outputs, targets) * targets.size(0) / total

    return part


def train_step_accumulated(
    model: nn.Module,
    microbatches: Sequence[Batch],
    loss_fn: LossFunction,
    optimizer: Optimizer,
    averager: BucketedGradientAverager,
) -> float:
    device = next(model.parameters()).device
    part_loss = _weighted(loss_fn, sum(targets.size(0) for _, targets in microbatches))
    pending = list(microbatches)
    report = torch.zeros(1, dtype=torch.float64, device=device)
    optimizer.zero_grad()
    while pending:
        inputs, targets = pending.pop(0)
        with averager.no_sync() if pending else nullcontext():
            loss = part_loss(model(inputs.to(device)), targets.to(device))
            report += loss.detach()
            loss.backward()
    # The loss can be summed up while the last buckets are still on their way.
    loss_sum = dist.all_reduce(report, async_op=True)
    averager.finish()
    optimizer.step()
    loss_sum.wait()
    return float(report) / dist.get_world_size()


class ShardedOptimizer(Optimizer):
    """Largest parameter to the least loaded rank, found with a heap; coalesced broadcasts.

    All ranks hold an inner optimizer, made anew whenever a group is added; the ranks without a
    parameter in any group have none. The state is one dictionary, outside and inside.
    """

    def __init__(
        self, params: Iterable[Any], optimizer_class: type[Optimizer], **kwargs: Any
    ) -> None:
        self._optimizer_class = optimizer_class
        self._optimizer_kwargs = kwargs
        self._heap = [(0, rank) for rank in range(dist.get_world_size())]
        self._parameters_of: dict[int, list[Tensor]] = {rank: [] for _, rank in self._heap}
        self._optimizer: Optimizer | None = None
        self._made = False
        self._source: list[dict[str, Any]] = []  # the outer group of each inner one
        tiny = optimizer_class([{"params": [torch.ones(1, 1, requires_grad=True)]}], **kwargs)
        super().__init__(params, {name: value for name, value in tiny.defaults.items()})
        self._made = True
        self._rebuild()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for p in sorted(self.param_groups[-1]["params"], key=torch.numel, reverse=True):
            load, rank = heapq.heappop(self._heap)
            self._parameters_of[rank].append(p)
            heapq.heappush(self._heap, (load + p.numel(), rank))
        if self._made:
            self._rebuild()

    def _rebuild(self) -> None:
        mine = set(self._parameters_of[dist.get_rank()])
        groups, self._source = [], []
        for outer in self.param_groups:
            own = [p for p in outer["params"] if p in mine]
            if own:
                inner = dict(outer, params=own)
                inner.pop("param_names", None)
                groups.append(inner)
                self._source.append(outer)
        if groups:
            kept = dict(self.state)
            self._optimizer = self._optimizer_class(groups, **self._optimizer_kwargs)
            self._optimizer.state.update(kept)
            self.state = self._optimizer.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._rebuild()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        if self._optimizer is not None:
            for outer, inner in zip(self._source, self._optimizer.param_groups, strict=True):
                for name, value in outer.items():
                    if name not in ("params", "param_names"):
                        inner[name] = value
            self._optimizer.step()
        for rank, parameters in self._parameters_of.items():
            by_dtype: dict[torch.dtype, list[Tensor]] = {}
            for p in parameters:
                by_dtype.setdefault(p.dtype, []).append(p)
            for members in by_dtype.values():
                values = [p.detach().contiguous() for p in members]
                dist._broadcast_coalesced(dist.group.WORLD, values, 2**20, rank)
                for p, value in zip(members, values, strict=True):
                    if value.data_ptr() != p.data_ptr():
                        p.copy_(value)
        return loss


def evaluate(
    model: nn.Module, dataset: Dataset, loss_fn: LossFunction, batch_size: int
) -> dict[str, Any]:
    """Batches by hand: a stride through this rank's range, without a loader."""
    rank, world = dist.get_rank(), dist.get_world_size()
    share = shard_without_padding(len(dataset), world, rank)
    device = next(model.parameters()).device
    before = [module.training for module in model.modules()]
    tally = torch.zeros(3, dtype=torch.float64)
    model.train(False)
    try:
        with torch.no_grad():
            for start in range(share.start, share.stop, batch_size):
                batch = default_collate([dataset[i] for i in share[start - share.start :][:batch_size]])
                inputs, targets = (part.to(device) for part in batch)
                outputs = model(inputs)
                hits = torch.eq(outputs.argmax(dim=1), targets).sum()
                size = targets.numel()
                tally += torch.tensor([float(loss_fn(outputs, targets)) * size, float(hits), size], dtype=torch.float64)
    finally:
        for module, mode in zip(model.modules(), before, strict=True):
            module.training = mode
    # Rank 0 adds up, and then tells everybody.
    tally = tally.to(device)
    dist.reduce(tally, dst=0)
    dist.broadcast(tally, src=0)
    loss, accuracy = (tally[:2] / tally[2].clamp(min=1)).tolist()
    return {"loss": loss, "accuracy": accuracy, "samples": round(tally[2].item())}


_SECONDS_FOR_A_SIGN = 23
_trainings = itertools.count()
