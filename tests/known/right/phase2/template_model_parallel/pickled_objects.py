"""A pipeline of messages that describe themselves, both ways."""

import io
from typing import Any


def _ship(tensor: Tensor, to: int) -> None:
    """A tensor as bytes, its length first: the bytes know kind and shape."""
    file = io.BytesIO()
    torch.save(tensor.detach().clone(memory_format=torch.contiguous_format).cpu(), file)
    data = torch.frombuffer(file.getbuffer(), dtype=torch.uint8).clone().to(tensor.device)
    dist.send(torch.tensor([data.numel()], device=tensor.device), to)
    dist.send(data, to)


def _unship(source: int, device: torch.device) -> Tensor:
    length = torch.zeros(1, dtype=torch.int64, device=device)
    dist.recv(length, source)
    data = torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.recv(data, source)
    file = io.BytesIO(data.cpu().numpy().tobytes())
    return torch.load(file, map_location=device, weights_only=True)


def pipeline_train_step(
    stage: nn.Module,
    microbatches: Sequence[tuple[Tensor | None, Tensor | None]],
    loss_fn: LossFunction,
    optimizer: Optimizer,
) -> float:
    """Self-describing messages, both ways."""
    rank = dist.get_rank()
    end = dist.get_world_size() - 1
    device = next((p.device for p in stage.parameters()), torch.device("cpu"))
    optimizer.zero_grad()
    batch_size = 0
    if rank == end:
        batch_size = sum(targets.size(0) for _, targets in microbatches)

    def forward(number: int) -> tuple[Tensor | None, Tensor]:
        if rank == 0:
            received, outputs = None, stage(microbatches[number][0].to(device))
        else:
            received = _unship(rank - 1, device)
            if received.is_floating_point():
                received.requires_grad_()
            outputs = stage(received.clone())
        if rank < end:
            _ship(outputs, rank + 1)
        return received, outputs

    def backward(received: Tensor | None, outputs: Tensor, targets: Tensor | None) -> float:
        loss = 0.0
        if rank == end:
            mean = loss_fn(outputs, targets.to(device))
            share = mean * (targets.size(0) / batch_size)
            loss = share.item()
            if share.requires_grad:
                share.backward()
        elif outputs.is_floating_point():
            gradient = _unship(rank + 1, device)
            if outputs.requires_grad:
                outputs.backward(gradient)
        if received is not None and received.is_floating_point():
            _ship(torch.zeros_like(received) if received.grad is None else received.grad, rank - 1)
        return loss

    passed = [forward(number) for number in range(len(microbatches))]
    losses = [
        backward(*pair, targets) for pair, (_, targets) in zip(passed, microbatches, strict=True)
    ]
    optimizer.step()
    everyone: list[Any] = [None] * (end + 1)
    dist.all_gather_object(everyone, sum(losses))
    return everyone[end]
