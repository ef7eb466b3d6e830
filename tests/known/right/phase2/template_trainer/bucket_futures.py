"""Gradients are views of their buckets; a helper thread sends around the ring."""

import functools
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from torch.utils.data import BatchSampler


def ring_all_reduce(tensor: Tensor) -> None:
    """A helper thread does the blocking sends, so that this one can receive meanwhile."""
    world_size = dist.get_world_size()
    rank = dist.get_rank()
    elements = tensor.numel()
    if world_size == 1 or elements == 0:
        return
    successor = (rank + 1) % world_size
    predecessor = (rank - 1) % world_size
    per_chunk = (elements - 1) // world_size + 1
    work = torch.zeros(per_chunk * world_size, dtype=tensor.dtype, device=tensor.device)
    work[:elements] = tensor.detach().flatten()
    chunk = [work[i * per_chunk : (i + 1) * per_chunk] for i in range(world_size)]
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ring") as helper:
        for step in range(2 * (world_size - 1)):
            gathering = step >= world_size - 1
            outgoing = chunk[(rank - step) % world_size]
            target = chunk[(rank - step - 1) % world_size]
            sent = helper.submit(dist.send, outgoing, successor)
            received = torch.empty_like(target)
            dist.recv(received, predecessor)
            sent.result()
            if gathering:
                target.copy_(received)
            else:
                target.add_(received)
    with torch.no_grad():
        tensor.copy_(work[:elements].view(tensor.size()))


class _ViewBucket:
    """A buffer of which the gradients of its parameters are views once they are averaged."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        self.params = params
        self.buffer = torch.zeros(sum(p.numel() for p in params), dtype=params[0].dtype, device=params[0].device)
        lengths = [p.numel() for p in params]
        self.views = [v.view(p.shape) for v, p in zip(self.buffer.split(lengths), params, strict=True)]
        self.pending = len(params)
        self.future: torch.futures.Future | None = None

    @property
    def gone(self) -> bool:
        return self.future is not None

    def _load(self, views: list[Tensor]) -> None:
        """Take the gradients over into `views`, and leave none behind."""
        for p, view in zip(self.params, views, strict=True):
            if p.grad is None:
                view.zero_()
            elif p.grad.data_ptr() != view.data_ptr() or p.grad.stride() != view.stride():
                view.copy_(p.grad)
            p.grad = None

    def start(self) -> None:
        self._load(self.views)
        world = dist.get_world_size()
        future = dist.all_reduce(self.buffer, async_op=True).get_future()
        self.future = future.then(lambda done: done.value()[0].div_(world))

    def start_again(self) -> torch.futures.Future:
        """A second round with what has been accumulated since the first."""
        more = torch.zeros_like(self.buffer)
        lengths = [p.numel() for p in self.params]
        self._load([v.view(p.shape) for v, p in zip(more.split(lengths), self.params, strict=True)])
        world = dist.get_world_size()
        future = dist.all_reduce(more, async_op=True).get_future()
        return future.then(lambda done: done.value()[0].div_(world))

    def publish(self) -> None:
        for p, view in zip(self.params, self.views, strict=True):
            p.grad = view
        self.pending = len(self.params)
        self.future = None


def _notify(averager_ref: weakref.ref, number: int, param: Tensor) -> None:
    averager = averager_ref()
    if averager is not None:
        averager._on_gradient(number, param)


class BucketedGradientAverager:
    """Gradients as views of their buckets: nothing is copied back after the all-reduce."""

    def __init__(self, model: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        limit = bucket_cap_mb * 1024**2
        plan: list[list[nn.Parameter]] = []
        latest: dict[tuple[Any, ...], int] = {}
        weight: list[int] = []
        for p in [*model.parameters()][::-1]:
            if not p.requires_grad:
                continue
            key, size = (p.dtype, p.device), p.numel() * p.element_size()
            if key not in latest or weight[latest[key]] + size > limit:
                latest[key] = len(plan)
                plan.append([])
                weight.append(0)
            plan[latest[key]].append(p)
            weight[latest[key]] += size
        self._buckets = [_ViewBucket(params) for params in plan]
        self._seen: set[int] = set()
        self._turn = 0
        self._quiet = False
        self._hooks = [
            p.register_post_accumulate_grad_hook(functools.partial(_notify, weakref.ref(self), number))
            for number, params in enumerate(plan)
            for p in params
        ]
        weakref.finalize(self, lambda hooks: [hook.remove() for hook in hooks], self._hooks)

    def _on_gradient(self, number: int, param: Tensor) -> None:
        if self._quiet or number < self._turn or id(param) in self._seen:
            return
        self._seen.add(id(param))
        self._buckets[number].pending -= 1
        while self._turn < len(self._buckets) and self._buckets[self._turn].pending == 0:
            self._buckets[self._turn].start()
            self._turn += 1

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        was_quiet, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = was_quiet

    @torch.no_grad()
    def finish(self) -> None:
        if not self._buckets:
            return
        late = any(p.grad is not None for b in self._buckets if b.gone for p in b.params)
        for bucket in self._buckets[self._turn :]:
            bucket.start()
        question = torch.full((1,), int(late), dtype=torch.int64, device=self._buckets[0].buffer.device)
        answer = dist.all_reduce(question, async_op=True).get_future()
        torch.futures.collect_all([answer, *(bucket.future for bucket in self._buckets)]).wait()
        for bucket in self._buckets:
            bucket.future.wait()  # raises what went wrong, which collect_all keeps to itself
        answer.wait()
        if int(question) > 0:
            extra = [bucket.start_again() for bucket in self._buckets]
            for bucket, future in zip(self._buckets, extra, strict=True):
                bucket.buffer += future.wait()
        for bucket in self._buckets:
            bucket.publish()
        self._seen.clear()
        self._turn = 0


def train_step_accumulated(
    model: nn.Module,
    microbatches: Sequence[Batch],
    loss_fn: LossFunction,
    optimizer: Optimizer,
    averager: BucketedGradientAverager,
) -> float:
    """Sums, not means, go backward; the division by the number of samples comes at the end.

    Everything is linear, so gradients may be divided after they have been averaged.
    """
    device = next(model.parameters()).device
    optimizer.zero_grad()
    loss_sum, samples = 0.0, 0
    with ExitStack() as silence:
        silence.enter_context(averager.no_sync())
        for position, (x, y) in enumerate(microbatches):
            if position == len(microbatches) - 1:
                silence.close()  # the last one is sent
            x, y = x.to(device), y.to(device)
            summed = loss_fn(model(x), y) * y.shape[0]
            summed.backward()
            loss_sum += summed.item()
            samples += y.shape[0]
    averager.finish()
    for parameter in model.parameters():  # each once, tied ones too
        if parameter.requires_grad and parameter.grad is not None:
            parameter.grad.div_(samples)
    optimizer.step()
    sums = torch.tensor([loss_sum, samples], dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


class ShardedOptimizer(Optimizer):
    """Least loaded owner; one flat broadcast per owner and dtype; `state` looks into the inner one."""

    def __init__(
        self, params: Iterable[Any], optimizer_class: type[Optimizer], **kwargs: Any
    ) -> None:
        self._inner: Optimizer | None = None
        self._new_inner = lambda groups: optimizer_class(groups, **kwargs)
        self._owned_by: list[list[nn.Parameter]] = [[] for _ in range(dist.get_world_size())]
        self._links: list[tuple[int, int]] = []
        sample = self._new_inner([{"params": [torch.zeros(1, 1).requires_grad_()]}])
        self._waiting: list[tuple[int, dict[str, Any]]] | None = []
        super().__init__(params, dict(sample.defaults))
        waiting, self._waiting = self._waiting, None
        self._admit(waiting)

    @property
    def state(self) -> Any:
        """This rank's share: that of the optimizer inside, if there is one."""
        return self._own_state if self._inner is None else self._inner.state

    @state.setter
    def state(self, value: Any) -> None:
        if self._inner is None:
            self._own_state = value
        else:
            self._inner.state = value

    def __setstate__(self, state: dict[str, Any]) -> None:
        # What `load_state_dict` ends with. It writes into __dict__, past the property.
        state = dict(state)
        loaded = state.pop("state", None)
        super().__setstate__(state)
        if loaded is not None:
            self.state = loaded

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        own: list[Tensor] = []
        for p in added["params"]:
            loads = [sum(q.numel() for q in share) for share in self._owned_by]
            owner = loads.index(min(loads))
            self._owned_by[owner].append(p)
            if owner == dist.get_rank():
                own.append(p)
        if own:
            group = {k: v for k, v in added.items() if k != "param_names"}
            group["params"] = own
            entry = (len(self.param_groups) - 1, group)
            if self._waiting is None:
                self._admit([entry])
            else:
                self._waiting.append(entry)

    def _admit(self, entries: list[tuple[int, dict[str, Any]]]) -> None:
        """Hand groups to the inner optimizer, which begins to exist with the first ones."""
        if not entries:
            return
        fresh = self._new_inner([group for _, group in entries])
        if self._inner is None:
            self._inner = fresh
        else:
            for group in fresh.param_groups:
                self._inner.add_param_group(group)
            self._inner.state.update(fresh.state)
        for outer, _ in entries:
            self._links.append((outer, len(self._links)))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for outer_index, inner_index in self._links:
            outer, inner = self.param_groups[outer_index], self._inner.param_groups[inner_index]
            inner.update((k, v) for k, v in outer.items() if k in inner and k != "params")
        if self._inner is not None:
            self._inner.step()
        self._spread()
        return loss

    @torch.no_grad()
    def _spread(self) -> None:
        sent = []
        for owner, share in enumerate(self._owned_by):
            kinds: dict[Any, list[nn.Parameter]] = {}
            for p in share:
                kinds.setdefault((p.dtype, p.device), []).append(p)
            for members in kinds.values():
                flat = torch.cat([p.reshape(-1) for p in members])
                sent.append((members, flat, dist.broadcast(flat, owner, async_op=True)))
        for members, flat, handle in sent:
            handle.wait()
            for p, values in zip(members, flat.split([p.numel() for p in members]), strict=True):
                p.copy_(values.view(p.shape))


def evaluate(
    model: nn.Module, dataset: Dataset, loss_fn: LossFunction, batch_size: int
) -> dict[str, Any]:
    """A batch sampler over this rank's range; integers and floats are summed apart."""
    share = shard_without_padding(len(dataset), dist.get_world_size(), dist.get_rank())
    loader = DataLoader(dataset, batch_sampler=BatchSampler(share, batch_size, drop_last=False))
    device = next(model.parameters()).device
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    restore = []
    for module in model.modules():
        restore.append((module, module.training))
        module.training = False
    grad_was_on = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    try:
        for inputs, targets in loader:
            targets = targets.to(device)
            outputs = model(inputs.to(device))
            loss += loss_fn(outputs, targets) * targets.size(0)
            counts[0] += outputs.argmax(dim=1).eq(targets).sum()
            counts[1] += targets.size(0)
    finally:
        torch.set_grad_enabled(grad_was_on)
        for module, mode in restore:
            module.training = mode
    handles = [dist.all_reduce(loss, async_op=True), dist.all_reduce(counts, async_op=True)]
    for handle in handles:
        handle.wait()
    correct, samples = counts.tolist()
    if samples == 0:
        return {"loss": 0.0, "accuracy": 0.0, "samples": 0}
    return {"loss": loss.item() / samples, "accuracy": correct / samples, "samples": samples}
