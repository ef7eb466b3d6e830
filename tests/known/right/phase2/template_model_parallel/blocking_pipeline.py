"""A pipeline of blocking sends and receives."""

_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)


def _send_activations(x: Tensor, dst: int) -> None:
    """First how many dimensions and what kind, then the sizes, then the numbers."""
    x = x.detach().contiguous()
    dist.send(torch.tensor([x.dim(), _DTYPES.index(x.dtype)], device=x.device), dst)
    if x.dim():
        dist.send(torch.tensor(x.shape, device=x.device), dst)
    dist.send(x, dst)


def _receive_activations(src: int, device: torch.device) -> Tensor:
    head = torch.empty(2, dtype=torch.int64, device=device)
    dist.recv(head, src)
    sizes = torch.empty(int(head[0]), dtype=torch.int64, device=device)
    if sizes.numel():
        dist.recv(sizes, src)
    x = torch.empty(sizes.tolist(), dtype=_DTYPES[int(head[1])], device=device)
    dist.recv(x, src)
    return x


def _stage_device(stage: nn.Module) -> torch.device:
    return next((p.device for p in stage.parameters()), torch.device("cpu"))


def pipeline_train_step(
    stage: nn.Module,
    microbatches: Sequence[tuple[Tensor | None, Tensor | None]],
    loss_fn: LossFunction,
    optimizer: Optimizer,
) -> float:
    """Blocking sends and receives: a pipeline is a chain, and in a chain nobody waits in a circle."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    device = _stage_device(stage)
    optimizer.zero_grad()
    stage.zero_grad()
    total = sum(len(targets) for _, targets in microbatches) if rank == last else 0
    loss_sum = torch.zeros((), dtype=torch.float64, device=device)

    kept: list[tuple[Tensor, Tensor]] = []
    for inputs, targets in microbatches:
        if rank == 0:
            x = inputs.to(device)
            outputs = stage(x)
        else:
            x = _receive_activations(rank - 1, device)
            x.requires_grad_(x.is_floating_point())
            outputs = stage(x.clone())  # a stage may begin with something in place
        if rank == last:
            targets = targets.to(device)
            outputs = loss_fn(outputs, targets) * (len(targets) / total)
            loss_sum += outputs.detach()
        else:
            _send_activations(outputs, rank + 1)
        kept.append((x, outputs))

    for x, outputs in kept:
        if rank == last:
            gradient = None
        elif outputs.is_floating_point():
            gradient = torch.empty_like(outputs.detach(), memory_format=torch.contiguous_format)
            dist.recv(gradient, rank + 1)
        if outputs.requires_grad:
            outputs.backward(gradient)
        if rank > 0 and x.is_floating_point():
            dist.send(torch.zeros_like(x) if x.grad is None else x.grad.contiguous(), rank - 1)
    optimizer.step()
    dist.broadcast(loss_sum, src=last)
    return loss_sum.item()
