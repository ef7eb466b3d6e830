"""Averages by functional collectives, which return what they make, in a device mesh's group."""

import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh


class BucketedGradientAverager:
    def __init__(self, model, bucket_cap_mb=25.0):
        self.group = init_device_mesh("cpu", (dist.get_world_size(),)).get_group()
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
        self.ready = [0] * len(self.buckets)
        self.sums, self.again = [], False

    def made(self, param):
        if self.quiet:
            self.again |= any(self.ready)
            return
        self.ready[self.bucket_of[param]] += 1
        while len(self.sums) < len(self.buckets) and self.ready[len(self.sums)] >= len(
            self.buckets[len(self.sums)]
        ):
            self.send()

    def send(self):
        grads = [
            torch.zeros_like(p) if p.grad is None else p.grad
            for p in self.buckets[len(self.sums)]
        ]
        flat = torch.cat([grad.detach().reshape(-1) for grad in grads])
        self.sums.append(funcol.all_reduce(flat, "sum", self.group))

    @contextmanager
    def no_sync(self):
        before, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = before

    def finish(self):
        while len(self.sums) < len(self.buckets):
            self.send()
        if self.again:
            for one in self.sums:
                funcol.wait_tensor(one)
            self.sums = []
            while len(self.sums) < len(self.buckets):
                self.send()
        for bucket, one in zip(self.buckets, self.sums):
            mean = funcol.wait_tensor(one) / self.group.size()
            for p, part in zip(bucket, mean.split([p.numel() for p in bucket])):
                p.grad = part.reshape(p.shape).clone()
        self.begin()
