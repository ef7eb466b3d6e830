"""Each bucket is a reduce-scatter during backward, and an all-gather in `finish`."""


class BucketedGradientAverager(BucketedGradientAverager):
    def __init__(self, model, bucket_cap_mb=25.0):
        super().__init__(model, bucket_cap_mb)
        self._buckets = [_Halved(bucket.params) for bucket in self._buckets]
        self._bucket_of = {p: bucket for bucket in self._buckets for p in bucket.params}


class _Halved:
    def __init__(self, params):
        self.params, self.missing, self.work = params, set(params), None

    def launch(self):
        size = dist.get_world_size()
        flat = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in self.params]
        )
        for param in self.params:
            param.grad = None
        self._sizes = [p.numel() for p in self.params]
        flat = nn.functional.pad(flat, (0, -len(flat) % size))
        self._mine = flat.new_empty(len(flat) // size)
        self.work = dist.reduce_scatter_tensor(self._mine, flat, async_op=True)

    def finish(self):
        self.work.wait()
        size = dist.get_world_size()
        whole = self._mine.new_empty(size * len(self._mine))
        dist.all_gather_into_tensor(whole, self._mine / size)
        parts = whole[: sum(self._sizes)].split(self._sizes)
        for param, part in zip(self.params, parts, strict=True):
            later = 0 if param.grad is None else param.grad
            param.grad = part.view_as(param) + later
        self.work, self.missing = None, set(self.params)
