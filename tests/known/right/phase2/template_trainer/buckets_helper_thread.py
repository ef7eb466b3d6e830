"""A helper thread averages bucket after bucket, with calls that block it alone."""

import contextlib
import queue
import threading


class BucketedGradientAverager:
    def __init__(self, model, bucket_cap_mb=25.0):
        self._buckets = [[]]
        for param in reversed(list(model.parameters())):
            if not param.requires_grad:
                continue
            bucket = self._buckets[-1]
            same = not bucket or bucket[0].dtype == param.dtype
            total = sum(p.numel() * p.element_size() for p in [*bucket, param])
            if bucket and (not same or total > bucket_cap_mb * 2**20):
                self._buckets.append([param])
            else:
                bucket.append(param)
            param.register_post_accumulate_grad_hook(self._on_gradient)
        self._start()
        self._holding = False

    def _start(self):
        self._tasks = queue.Queue()
        self._results = []
        self._error = None
        self._next = 0
        self._here = set()
        self._again = False
        self._thread = None

    def _work(self):
        try:
            while (flat := self._tasks.get()) is not None:
                dist.all_reduce(flat)  # train calls no other collective meanwhile
                self._results.append(flat / dist.get_world_size())
        except RuntimeError as error:  # for finish to raise
            self._error = error

    def _on_gradient(self, param):
        if self._holding:
            self._again = self._again or bool(self._here)
            return
        self._here.add(param)
        while self._next < len(self._buckets) and self._here.issuperset(self._buckets[self._next]):
            self._hand_over()

    def _hand_over(self):
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._buckets[self._next]]
        self._tasks.put(torch.cat([g.detach().reshape(-1) for g in grads]))
        self._next += 1

    @contextlib.contextmanager
    def no_sync(self):
        self._holding = True
        try:
            yield
        finally:
            self._holding = False

    def finish(self):
        while self._next < len(self._buckets):
            self._hand_over()
        if self._again:
            self._next = 0
            while self._next < len(self._buckets):
                self._hand_over()
        self._tasks.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error
        for bucket, flat in zip(self._buckets, self._results[-len(self._buckets) :], strict=True):
            for param, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                param.grad = part.reshape(param.shape).clone()
        self._start()
