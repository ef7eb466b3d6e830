"""The pipeline with isend and tags, the last microbatch back first, the loss as a sum."""

NAMES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64]


def pipeline_train_step(stage, microbatches, loss_fn, optimizer):
    me, n = dist.get_rank(), dist.get_world_size()
    optimizer.zero_grad(set_to_none=False)
    pending = []

    def post(tensor, to, tag):
        tensor = tensor.contiguous()
        shape = torch.tensor([NAMES.index(tensor.dtype), *tensor.shape], dtype=torch.int32)
        dims = torch.tensor([len(shape)], dtype=torch.int32)
        for part in (dims, shape, tensor):
            pending.append((dist.isend(part, to, tag=tag), part))

    def fetch(source, tag):
        dims = torch.zeros(1, dtype=torch.int32)
        dist.irecv(dims, source, tag=tag).wait()
        shape = torch.zeros(int(dims), dtype=torch.int32)
        dist.irecv(shape, source, tag=tag).wait()
        kind, *sides = shape.tolist()
        tensor = torch.zeros(sides, dtype=NAMES[kind])
        dist.irecv(tensor, source, tag=tag).wait()
        return tensor

    ins, outs = {}, {}
    for k, (inputs, _) in enumerate(microbatches):
        ins[k] = inputs if me == 0 else fetch(me - 1, k).requires_grad_()
        outs[k] = stage(ins[k])
        if me < n - 1:
            post(outs[k].detach(), me + 1, k)

    loss = torch.zeros(1)
    if me == n - 1:
        samples = sum(len(t) for _, t in microbatches)
        weighed = [loss_fn(outs[k], t) * len(t) for k, (_, t) in enumerate(microbatches)]
        loss += sum(weighed).detach() / samples
    for k in reversed(range(len(microbatches))):
        if me == n - 1:
            (weighed[k] / samples).backward()
        else:
            grad = fetch(me + 1, k)
            if outs[k].requires_grad:
                outs[k].backward(grad)
        if me > 0:
            post(ins[k].grad, me - 1, k)
    for work, _ in pending:
        work.wait()
    optimizer.step()
    dist.all_reduce(loss)
    return loss.item()
