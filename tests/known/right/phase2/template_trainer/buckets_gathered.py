"""Gathers every rank's bucket, through futures, and takes the mean of what came."""


class BucketedGradientAverager:
    def __init__(self, model, bucket_cap_mb=25.0):
        self.cap = bucket_cap_mb * 2**20
        self.params = [p for p in model.parameters() if p.requires_grad][::-1]
        self.number = {p: i for i, p in enumerate(self.params)}
        self.stops = [0]  # bucket k has the parameters from stops[k] to stops[k + 1]
        size = 0
        for i, p in enumerate(self.params):
            apart = i and (p.dtype != self.params[i - 1].dtype or size + p.nbytes > self.cap)
            if apart:
                self.stops.append(i)
                size = 0
            size += p.nbytes
        self.stops.append(len(self.params))
        self.silent = False
        self.reset()
        for p in self.params:
            p.register_post_accumulate_grad_hook(self.take)

    def reset(self):
        self.seen = [False] * len(self.params)
        self.futures = []
        self.more = False

    def take(self, p):
        if self.silent:
            self.more |= any(self.seen)
            return
        self.seen[self.number[p]] = True
        while len(self.futures) + 1 < len(self.stops) and all(self.seen[self.bounds()]):
            self.gather()

    def bounds(self):
        return slice(self.stops[len(self.futures)], self.stops[len(self.futures) + 1])

    def gather(self):
        params = self.params[self.bounds()]
        mine = nn.utils.parameters_to_vector(
            [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
        ).detach()
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        work = dist.all_gather(parts, mine, async_op=True)
        self.futures.append((work.get_future(), parts, params))

    @contextmanager
    def no_sync(self):
        self.silent = True
        try:
            yield
        finally:
            self.silent = False

    def finish(self):
        while len(self.futures) + 1 < len(self.stops):
            self.gather()
        for future, _, _ in self.futures:
            future.wait()
        if self.more:
            self.reset()
            return self.finish()
        for _, parts, params in self.futures:
            mean = torch.stack(parts).mean(0)
            for p, part in zip(params, mean.split([p.numel() for p in params]), strict=True):
                p.grad = part.view_as(p).clone()
        self.reset()
