"""A helper thread sums each bucket with the ring of the exercise before."""

import threading


class BucketedGradientAverager:
    def __init__(self, model, bucket_cap_mb=25.0):
        self.cond = threading.Condition()
        self.queue, self.done, self.failed = [], [], None
        self.buckets, size = [], 0
        for p in [p for p in model.parameters() if p.requires_grad][::-1]:
            if not self.buckets or self.buckets[-1][0].dtype != p.dtype or size + p.nbytes > bucket_cap_mb * 2**20:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(p)
            size += p.nbytes
        self.of = {p: i for i, b in enumerate(self.buckets) for p in b}
        for p in self.of:
            p.register_post_accumulate_grad_hook(self.on)
        self.quiet = False
        self.again = False
        self.ready = set()
        self.sent = 0
        self.thread = None

    def serve(self):
        try:
            while True:
                with self.cond:
                    while not self.queue:
                        self.cond.wait()
                    flat = self.queue.pop(0)
                if flat is None:
                    return
                ring_all_reduce(flat)
                with self.cond:
                    self.done.append(flat)
                    self.cond.notify_all()
        except Exception as e:
            with self.cond:
                self.failed = e
                self.cond.notify_all()

    def on(self, p):
        if self.quiet:
            self.again = self.again or bool(self.ready)
            return
        self.ready.add(p)
        while self.sent < len(self.buckets) and self.ready.issuperset(self.buckets[self.sent]):
            self.give()

    def give(self):
        if self.thread is None:
            self.thread = threading.Thread(target=self.serve, daemon=True)
            self.thread.start()
        b = self.buckets[self.sent % len(self.buckets)]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1) for p in b])
        with self.cond:
            self.queue.append(flat)
            self.cond.notify_all()
        self.sent += 1

    @contextmanager
    def no_sync(self):
        was = self.quiet
        self.quiet = True
        try:
            yield
        finally:
            self.quiet = was

    def finish(self):
        n = len(self.buckets)
        while self.sent < n:
            self.give()
        if self.again:
            while self.sent < 2 * n:
                self.give()
        with self.cond:
            while len(self.done) < self.sent and self.failed is None:
                self.cond.wait()
        if self.failed:
            raise self.failed
        for b, flat in zip(self.buckets, self.done[-n:] if n else []):
            for p, g in zip(b, flat.div_(dist.get_world_size()).split([p.numel() for p in b])):
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                p.grad.copy_(g.view_as(p))
        with self.cond:
            self.queue.append(None)
            self.cond.notify_all()
        if self.thread:
            self.thread.join()
        self.thread = None
        self.done, self.sent, self.again = [], 0, False
        self.ready.clear()
