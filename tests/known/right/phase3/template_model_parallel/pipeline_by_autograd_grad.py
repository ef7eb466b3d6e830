"""`autograd.grad` computes the gradients; a header says which gradients are awaited."""

_KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32]


class _Rank:
    def __init__(self, stage, microbatches, loss_fn):
        self.stage, self.microbatches, self.loss_fn = stage, microbatches, loss_fn
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.first, self.last = self.rank == 0, self.rank == self.ranks - 1
        self.kept, self.works = {}, {}
        self.parameters = [p for p in stage.parameters() if p.requires_grad]
        self.total = sum(t.shape[0] for _, t in microbatches) if self.last else 1
        self.loss = torch.zeros((), dtype=torch.float64)

    def forward(self, number):
        inputs, targets = self.microbatches[number]
        if not self.first:
            size = torch.empty(1, dtype=torch.int64)
            dist.recv(size, self.rank - 1)
            header = torch.empty(int(size), dtype=torch.int64)
            dist.recv(header, self.rank - 1)
            kind, wants, *shape = header.tolist()
            inputs = torch.empty(shape, dtype=_KINDS[kind])
            dist.recv(inputs, self.rank - 1)
            inputs.requires_grad_(bool(wants))
        outputs = self.stage(inputs)
        if self.last:
            outputs = self.loss_fn(outputs, targets) * len(targets) / self.total
            self.loss += outputs.detach()
        self.kept[number] = (inputs if torch.is_tensor(inputs) else None, outputs)

    def send_on(self, number):
        if self.last:
            return
        outputs = self.kept[number][1].detach().contiguous()
        wants = int(self.kept[number][1].requires_grad)
        header = torch.tensor([_KINDS.index(outputs.dtype), wants, *outputs.shape])
        size = torch.tensor([len(header)])
        self.works[number] = [
            (dist.isend(tensor, self.rank + 1), tensor) for tensor in (size, header, outputs)
        ]

    def backward(self, number):
        inputs, outputs = self.kept.pop(number)
        for work, _ in self.works.pop(number, []):
            work.wait()
        if not outputs.requires_grad:
            return
        gradient = None
        if not self.last:
            gradient = torch.empty(outputs.shape, dtype=outputs.dtype)
            dist.recv(gradient, self.rank + 1)
        needs = not self.first and inputs.requires_grad
        wanted = self.parameters + ([inputs] if needs else [])
        found = torch.autograd.grad(outputs, wanted, gradient, allow_unused=True)
        for parameter, one in zip(self.parameters, found, strict=False):
            if one is not None:
                parameter.grad = one if parameter.grad is None else parameter.grad + one
        if needs:
            back = torch.zeros_like(inputs) if found[-1] is None else found[-1]
            dist.send(back.contiguous(), self.rank - 1)


def pipeline_1f1b(stage, microbatches, loss_fn, optimizer):
    me, count = _Rank(stage, microbatches, loss_fn), len(microbatches)
    optimizer.zero_grad(set_to_none=True)
    ahead = min(count, me.ranks - me.rank - 1)
    for number in range(count + ahead):
        if number < count:
            me.forward(number)
            me.send_on(number)
        if number >= ahead:
            me.backward(number - ahead)
    optimizer.step()
    dist.broadcast(me.loss, me.ranks - 1)
    return float(me.loss)
