"""Each bucket ends with a flag for each of its parameters: what nobody used keeps its None."""

import contextlib


class BucketedGradientAverager:
    def __init__(self, model, bucket_cap_mb=25.0):
        self.buckets, self.off, room = [], 0, 0
        for p in reversed([p for p in model.parameters() if p.requires_grad]):
            needed = (p.numel() + 1) * p.element_size()
            if not self.buckets or self.buckets[-1][0].dtype != p.dtype or needed > room:
                self.buckets.append([])
                room = bucket_cap_mb * 2**20
            self.buckets[-1].append(p)
            room -= needed
        self.bucket_of = {p: i for i, bucket in enumerate(self.buckets) for p in bucket}
        self.began = self.stale = False
        self.anew()
        for p in self.bucket_of:
            p.register_post_accumulate_grad_hook(self.made)

    def anew(self):
        self.missing = [set(bucket) for bucket in self.buckets]
        self.sums = []

    @contextlib.contextmanager
    def no_sync(self):
        self.off += 1
        self.stale = self.stale or self.began  # what has left may lack what comes now
        try:
            yield
        finally:
            self.off -= 1

    def made(self, p):
        if self.off:
            return
        self.began = True
        self.missing[self.bucket_of[p]].discard(p)
        while len(self.sums) < len(self.buckets) and not self.missing[len(self.sums)]:
            self.send()

    def send(self):
        bucket = self.buckets[len(self.sums)]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flags = torch.tensor([p.grad is not None for p in bucket], dtype=bucket[0].dtype)
        flat = torch.cat([*(grad.detach().flatten() for grad in grads), flags])
        self.sums.append((flat, dist.all_reduce(flat, async_op=True)))

    @torch.no_grad()
    def finish(self):
        for _ in range(1 + self.stale):
            while len(self.sums) < len(self.buckets):
                self.send()
            for _, work in self.sums:
                work.wait()
            sums, self.sums = self.sums, []
        for bucket, (flat, _) in zip(self.buckets, sums):
            *parts, flags = flat.split([*(p.numel() for p in bucket), len(bucket)])
            for p, part, used in zip(bucket, parts, flags.tolist()):
                if used and p.grad is None:
                    p.grad = torch.empty_like(p)
                if used:
                    p.grad.copy_(part.view_as(p) / dist.get_world_size())
        self.began = self.stale = False
        self.anew()
