"""Gradients are views of the buckets while they travel: nothing is copied back."""


class BucketedGradientAverager:
    def __init__(self, model, bucket_cap_mb=25.0):
        self.world = dist.get_world_size()
        self.flats, self.views, self.bucket_of = [], {}, {}
        group, used = [], 0
        for p in [p for p in list(model.parameters())[::-1] if p.requires_grad]:
            if group and (group[0].dtype != p.dtype or used + p.nbytes > bucket_cap_mb * 2**20):
                self._close(group)
                group, used = [], 0
            group.append(p)
            used += p.nbytes
        if group:
            self._close(group)
        self.waiting_for = [set() for _ in self.flats]
        self.works = []
        self.quiet = False
        self._begin()
        for p in self.views:
            p.register_post_accumulate_grad_hook(self._came)

    def _close(self, group):
        flat = torch.zeros(sum(p.numel() for p in group), dtype=group[0].dtype)
        start = 0
        for p in group:
            self.views[p] = flat[start : start + p.numel()].view(p.shape)
            self.bucket_of[p] = len(self.flats)
            start += p.numel()
        self.flats.append(flat)

    def _begin(self):
        self.works = []
        for p, bucket in self.bucket_of.items():
            self.waiting_for[bucket].add(p)

    def _came(self, p):
        if self.quiet:
            return
        self.waiting_for[self.bucket_of[p]].discard(p)
        while len(self.works) < len(self.flats) and not self.waiting_for[len(self.works)]:
            self._leave()

    @torch.no_grad()
    def _leave(self):
        number = len(self.works)
        for p, bucket in self.bucket_of.items():
            if bucket == number:
                view = self.views[p]
                if p.grad is None:
                    view.zero_()
                elif p.grad.data_ptr() != view.data_ptr():
                    view.copy_(p.grad)
                p.grad = view
        self.flats[number].div_(self.world)
        self.works.append(dist.all_reduce(self.flats[number], async_op=True))

    @contextmanager
    def no_sync(self):
        if any(len(w) < sum(b == n for b in self.bucket_of.values())
               for n, w in enumerate(self.waiting_for)):
            self.finish()  # means may be averaged again: they stay what they are
        self.quiet = True
        try:
            yield self
        finally:
            self.quiet = False

    def finish(self):
        while len(self.works) < len(self.flats):
            self._leave()
        for work in self.works:
            work.wait()
        self._begin()
