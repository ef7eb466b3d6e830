"""Copies each gradient into its bucket as it comes, and counts what has come in sets."""

import contextlib


class BucketedGradientAverager:
    def __init__(self, model, bucket_cap_mb=25.0):
        limit = bucket_cap_mb * 1024 * 1024
        self.buckets = []
        open_by_dtype = {}
        for p in reversed([p for p in model.parameters() if p.requires_grad]):
            size = p.numel() * p.element_size()
            bucket = open_by_dtype.get(p.dtype)
            if bucket is None or bucket["bytes"] + size > limit:
                bucket = {"bytes": 0, "params": [], "slots": {}, "length": 0}
                open_by_dtype[p.dtype] = bucket
                self.buckets.append(bucket)
            bucket["slots"][p] = slice(bucket["length"], bucket["length"] + p.numel())
            bucket["length"] += p.numel()
            bucket["bytes"] += size
            bucket["params"].append(p)
        for bucket in self.buckets:
            bucket["flat"] = bucket["params"][0].new_zeros(bucket["length"])
            bucket["arrived"] = set()
            for p in bucket["params"]:
                p.register_post_accumulate_grad_hook(self._hook(bucket))
        self.handles = []
        self.local_only = 0
        self.earlier = {}  # gradients that came under no_sync after buckets had left

    def _hook(self, bucket):
        def hook(p):
            if self.local_only:
                return
            bucket["flat"][bucket["slots"][p]] = p.grad.flatten()
            bucket["arrived"].add(p)
            while len(self.handles) < len(self.buckets):
                following = self.buckets[len(self.handles)]
                if len(following["arrived"]) < len(following["params"]):
                    break
                self._send(following)

        return hook

    def _send(self, bucket):
        for p in bucket["params"]:
            if p not in bucket["arrived"]:
                part = bucket["flat"][bucket["slots"][p]]
                if p.grad is None:
                    part.zero_()
                else:
                    part.copy_(p.grad.flatten())
        bucket["sent"] = bucket["flat"].clone()
        self.handles.append(dist.all_reduce(bucket["flat"], async_op=True))

    @contextlib.contextmanager
    def no_sync(self):
        self.local_only += 1
        try:
            yield
        finally:
            self.local_only -= 1

    @torch.no_grad()
    def finish(self):
        while len(self.handles) < len(self.buckets):
            self._send(self.buckets[len(self.handles)])
        late = torch.zeros(1)
        for handle, bucket in zip(self.handles, self.buckets):
            handle.wait()
            for p in bucket["params"]:
                left = bucket["sent"][bucket["slots"][p]].view_as(p)
                if p.grad is not None and not torch.equal(left, p.grad):
                    late += 1
        dist.all_reduce(late)
        if late:  # some rank has other gradients now than those that it sent
            for bucket in self.buckets:
                bucket["arrived"].clear()
                self.handles.clear()
                self._send(bucket)
                self.handles[0].wait()
        for bucket in self.buckets:
            for p in bucket["params"]:
                mean = bucket["flat"][bucket["slots"][p]].view_as(p) / dist.get_world_size()
                if p.grad is None:
                    p.grad = mean
                else:
                    p.grad.copy_(mean)
            bucket["arrived"].clear()
        self.handles.clear()
