"""Buckets of copies, which are sent again if a gradient came late."""

import weakref


class _Bucket:
    """Some parameters whose gradients travel together."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        self.params = params
        self.ready: set[int] = set()
        self.flat: Tensor | None = None
        self.work: Any = None

    def launch(self) -> None:
        self.flat = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1) for p in self.params]
        )
        self.work = dist.all_reduce(self.flat, async_op=True)

    def deliver(self, world: int) -> None:
        mean = self.flat / world
        for p, part in zip(self.params, mean.split([p.numel() for p in self.params]), strict=True):
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad.copy_(part.view_as(p))

    def reset(self) -> None:
        self.ready.clear()
        self.flat = self.work = None


class BucketedGradientAverager:
    """Averages gradients in buckets; copies travel, and the gradients stay local until `finish`.

    That is why a late backward (under `no_sync`, after a bucket has left) is easy to repair: the
    gradients hold the full local sums, and `finish` sends the buckets again if any rank needs it.
    Whether one does, all ranks must know, so `finish` asks them: a message of one number.
    """

    def __init__(self, model: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        cap = bucket_cap_mb * 2**20
        self._buckets: list[_Bucket] = []
        filling: dict[Any, tuple[_Bucket, int]] = {}
        self._place: dict[nn.Parameter, int] = {}
        for p in reversed([p for p in model.parameters() if p.requires_grad]):
            kind, size = (p.dtype, p.device), p.numel() * p.element_size()
            bucket, used = filling.get(kind, (None, 0))
            if bucket is None or used + size > cap:
                bucket, used = _Bucket([]), 0
                self._buckets.append(bucket)
            bucket.params.append(p)
            filling[kind] = (bucket, used + size)
            self._place[p] = self._buckets.index(bucket)
        self._next = 0
        self._silent = 0
        self._late = False
        me = weakref.ref(self)

        def hook(p: Tensor) -> None:
            averager = me()
            if averager is not None:
                averager._arrived(p)

        handles = [p.register_post_accumulate_grad_hook(hook) for p in self._place]
        self._detach = weakref.finalize(self, lambda hs: [h.remove() for h in hs], handles)

    def _arrived(self, p: Tensor) -> None:
        number = self._place[p]
        if number < self._next:
            self._late = True
            return
        if self._silent:
            return
        self._buckets[number].ready.add(id(p))
        while self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            if len(bucket.ready) < len(bucket.params):
                break
            self._send_next()

    def _send_next(self) -> None:
        self._buckets[self._next].launch()
        self._next += 1

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._silent += 1
        try:
            yield
        finally:
            self._silent -= 1

    def finish(self) -> None:
        if not self._buckets:
            return
        while self._next < len(self._buckets):
            self._send_next()
        late = torch.tensor(float(self._late), device=self._buckets[0].params[0].device)
        asked = dist.all_reduce(late, dist.ReduceOp.MAX, async_op=True)
        for bucket in self._buckets:
            bucket.work.wait()
        asked.wait()
        if late.item():
            for bucket in self._buckets:
                bucket.launch()
            for bucket in self._buckets:
                bucket.work.wait()
        world = dist.get_world_size()
        for bucket in self._buckets:
            bucket.deliver(world)
            bucket.reset()
        self._next, self._late = 0, False

    def close(self) -> None:
        """Take the hooks off the model."""
        self._detach()
