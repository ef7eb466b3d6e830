"""Divides each bucket in a callback, and waits for all of them at once."""


class BucketedGradientAverager:
    def __init__(self, model, bucket_cap_mb=25.0):
        self.buckets = []
        for p in reversed([p for p in model.parameters() if p.requires_grad]):
            last = self.buckets[-1] if self.buckets else []
            room = bucket_cap_mb * 2**20 - sum(q.nbytes for q in last)
            if last and last[0].dtype == p.dtype and p.nbytes <= room:
                last.append(p)
            else:
                self.buckets.append([p])
        self.bucket_of = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        for p in self.bucket_of:
            p.register_post_accumulate_grad_hook(self.made)
        self.quiet = False
        self.begin()

    def begin(self):
        self.ready = [set() for _ in self.buckets]
        self.sent, self.again = [], False

    def made(self, param):
        if self.quiet:
            self.again |= any(self.ready)
            return
        self.ready[self.bucket_of[param]].add(param)
        while len(self.sent) < len(self.buckets) and len(self.ready[len(self.sent)]) == len(
            self.buckets[len(self.sent)]
        ):
            self.send()

    def send(self):
        bucket = self.buckets[len(self.sent)]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([grad.detach().reshape(-1) for grad in grads])
        future = dist.all_reduce(flat, async_op=True).get_future()
        self.sent.append(future.then(lambda done: done.value()[0] / dist.get_world_size()))

    @contextmanager
    def no_sync(self):
        before, self.quiet = self.quiet, True
        self.again |= any(self.ready)
        try:
            yield
        finally:
            self.quiet = before

    def finish(self):
        while len(self.sent) < len(self.buckets):
            self.send()
        if self.again:
            torch.futures.collect_all(self.sent).wait()
            self.sent = []
            while len(self.sent) < len(self.buckets):
                self.send()
        for bucket, flat in zip(self.buckets, torch.futures.wait_all(self.sent)):
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad = part.reshape(p.shape).clone()
        self.begin()
