"""Tensor hooks, which run before a gradient is accumulated; blocking calls; a running mean."""

import weakref


def ring_all_reduce(tensor: Tensor) -> None:
    """Blocking calls alone: even ranks speak first, odd ranks listen first.

    With an odd number of ranks the first and the last are both even. That is no circle of waiting
    ranks all the same, for some odd rank listens.
    """
    n, r = dist.get_world_size(), dist.get_rank()
    if n == 1:
        return
    count = tensor.numel()
    chunk = (count + n - 1) // n
    if chunk == 0:
        return
    padded = torch.zeros(n, chunk, dtype=tensor.dtype, device=tensor.device)
    padded.view(-1)[:count].copy_(tensor.detach().reshape(-1))
    inbox = torch.empty(chunk, dtype=tensor.dtype, device=tensor.device)

    def pass_on(row: int) -> None:
        if r % 2 == 0:
            dist.send(padded[row], dst=(r + 1) % n)
            dist.recv(inbox, src=(r + n - 1) % n)
        else:
            dist.recv(inbox, src=(r + n - 1) % n)
            dist.send(padded[row], dst=(r + 1) % n)

    # Reduce-scatter: what I pass on is what I added last.
    row = r
    for _ in range(n - 1):
        pass_on(row)
        row = (row - 1) % n
        padded[row] += inbox
    # All-gather: begins with the whole chunk, the one added last.
    for _ in range(n - 1):
        pass_on(row)
        row = (row - 1) % n
        padded[row] = inbox
    with torch.no_grad():
        tensor.copy_(padded.view(-1)[:count].reshape(tensor.shape))


class BucketedGradientAverager:
    """Buckets filled by tensor hooks, which run just before a gradient is accumulated.

    Such a hook sees what this backward adds. The final gradient is that plus what `grad` already
    holds, and this sum goes into the parameter's slot of its bucket.
    """

    def __init__(self, model: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        self.cap = int(bucket_cap_mb * 1024 * 1024)
        self.params: list[nn.Parameter] = [p for p in model.parameters() if p.requires_grad][::-1]
        self.groups = self._fill()
        self.home = {i: g for g, members in enumerate(self.groups) for i in members}
        self.storage = [
            torch.zeros(sum(self.params[i].numel() for i in members), dtype=self.params[members[0]].dtype,
                        device=self.params[members[0]].device)
            for members in self.groups
        ]
        self.slots: dict[int, Tensor] = {}
        for members, buffer in zip(self.groups, self.storage, strict=True):
            offset = 0
            for i in members:
                p = self.params[i]
                self.slots[i] = buffer[offset : offset + p.numel()].view(p.shape)
                offset += p.numel()
        self.depth = 0
        self._restart()
        watcher = weakref.WeakMethod(self._before_accumulation)
        self._handles = [p.register_hook(self._make_hook(watcher, i)) for i, p in enumerate(self.params)]
        weakref.finalize(self, BucketedGradientAverager._unhook, self._handles)

    @staticmethod
    def _make_hook(watcher: weakref.WeakMethod, index: int) -> Callable[[Tensor], None]:
        def hook(grad: Tensor) -> None:
            method = watcher()
            if method is not None:
                method(index, grad)

        return hook

    @staticmethod
    def _unhook(handles: list[Any]) -> None:
        for handle in handles:
            handle.remove()

    def _fill(self) -> list[list[int]]:
        groups: list[list[int]] = []
        open_group: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        used: dict[int, int] = {}
        for i, p in enumerate(self.params):
            nbytes = p.numel() * p.element_size()
            group = open_group.get((p.dtype, p.device))
            if group is None or used[id(group)] + nbytes > self.cap:
                group = open_group[p.dtype, p.device] = []
                groups.append(group)
                used[id(group)] = 0
            group.append(i)
            used[id(group)] += nbytes
        return groups

    def _restart(self) -> None:
        self.missing = [set(members) for members in self.groups]
        self.futures: list[Any] = []
        self.changed = torch.zeros(len(self.groups), dtype=torch.int32)

    @torch.no_grad()
    def _before_accumulation(self, index: int, grad: Tensor | None) -> None:
        group = self.home[index]
        if group < len(self.futures):  # it has left without this
            self.changed[group] = 1
            return
        if self.depth:
            self.missing[group].add(index)  # whatever the slot holds is old now
            return
        slot, old = self.slots[index], self.params[index].grad
        if grad is None:
            slot.zero_()
        else:
            slot.copy_(grad)
        if old is not None:
            slot.add_(old)
        self.missing[group].discard(index)
        while len(self.futures) < len(self.groups) and not self.missing[len(self.futures)]:
            self._launch(len(self.futures))

    def _launch(self, group: int) -> None:
        work = dist.all_reduce(self.storage[group], op=dist.ReduceOp.AVG, async_op=True)
        self.futures.append(work.get_future())

    @torch.no_grad()
    def _collect(self, group: int, which: Iterable[int]) -> None:
        for i in which:
            grad = self.params[i].grad
            if grad is None:
                self.slots[i].zero_()
            else:
                self.slots[i].copy_(grad)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.depth = self.depth, self.depth + 1
        try:
            yield
        finally:
            self.depth = before

    @torch.no_grad()
    def finish(self) -> None:
        if not self.groups:
            return
        for group in range(len(self.futures), len(self.groups)):
            self._collect(group, self.missing[group])
            self._launch(group)
        # Which buckets were overtaken by a later backward, on any rank?
        changed = self.changed.to(self.storage[0].device)
        dist.all_reduce(changed, op=dist.ReduceOp.MAX)
        for future in self.futures:
            future.wait()
        again = []
        for group in changed.nonzero().flatten().tolist():
            self._collect(group, self.groups[group])
            again.append(dist.all_reduce(self.storage[group], op=dist.ReduceOp.AVG, async_op=True).get_future())
        for future in again:
            future.wait()
        for i, p in enumerate(self.params):
            if p.grad is None:
                p.grad = self.slots[i].clone()
            else:
                p.grad.copy_(self.slots[i])
        self._restart()


def train_step_accumulated(
    model: nn.Module,
    microbatches: Sequence[Batch],
    loss_fn: LossFunction,
    optimizer: Optimizer,
    averager: BucketedGradientAverager,
) -> float:
    """A running mean: what is there shrinks a little as each microbatch comes in.

    After k microbatches the gradients are those of the mean over their samples, so nobody has to
    know the number of samples in advance.
    """
    device = next(model.parameters()).device
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer.zero_grad()
    seen, mean_loss = 0, 0.0
    last = len(microbatches) - 1
    for i, (inputs, targets) in enumerate(microbatches):
        count = len(targets)
        keep = seen / (seen + count)
        with torch.no_grad():
            for p in trainable:
                if p.grad is not None:
                    p.grad.mul_(keep)
        outputs = model(inputs.to(device))
        loss = loss_fn(outputs, targets.to(device))
        if i == last:
            ((1 - keep) * loss).backward()
        else:
            with averager.no_sync():
                ((1 - keep) * loss).backward()
        mean_loss = keep * mean_loss + (1 - keep) * loss.item()
        seen += count
    averager.finish()
    optimizer.step()
    losses: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(losses, (mean_loss, seen))
    return sum(mean * count for mean, count in losses) / sum(count for _, count in losses)
