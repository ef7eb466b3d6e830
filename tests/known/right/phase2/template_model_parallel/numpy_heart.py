"""A pipeline whose sends never block; stages keep their inputs and outputs in a queue."""

from collections import deque
from typing import Any

_KINDS = {
    torch.float64: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3,
    torch.int64: 4, torch.int32: 5, torch.uint8: 6, torch.bool: 7, torch.int16: 8, torch.int8: 9,
}
_BY_NUMBER = {number: kind for kind, number in _KINDS.items()}
_MOST_DIMS = 64


class _Neighbours:
    """The rank before and the rank after; sends are begun here and waited for at the end."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.pending: list[tuple[Any, Tensor]] = []

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def last(self) -> bool:
        return self.rank == self.world - 1

    def _begin(self, tensor: Tensor, to: int) -> None:
        tensor = tensor.detach().contiguous()
        self.pending.append((dist.isend(tensor, to), tensor))  # keep it until it has gone

    def forward(self, x: Tensor) -> None:
        header = [_KINDS[x.dtype], x.dim(), *x.shape]
        header += [0] * (2 + _MOST_DIMS - len(header))
        self._begin(torch.tensor(header, device=self.device), self.rank + 1)
        self._begin(x, self.rank + 1)

    def from_before(self) -> Tensor:
        header = torch.zeros(2 + _MOST_DIMS, dtype=torch.int64, device=self.device)
        dist.recv(header, self.rank - 1)
        kind, dims, *sizes = header.tolist()
        x = torch.empty(sizes[:dims], dtype=_BY_NUMBER[kind], device=self.device)
        dist.recv(x, self.rank - 1)
        return x

    def backward(self, gradient: Tensor) -> None:
        self._begin(gradient, self.rank - 1)

    def from_after(self, shape: torch.Size, kind: torch.dtype) -> Tensor:
        gradient = torch.empty(shape, dtype=kind, device=self.device)
        dist.recv(gradient, self.rank + 1)
        return gradient

    def flush(self) -> None:
        for handle, _ in self.pending:
            handle.wait()
        self.pending.clear()


def pipeline_train_step(
    stage: nn.Module,
    microbatches: Sequence[tuple[Tensor | None, Tensor | None]],
    loss_fn: LossFunction,
    optimizer: Optimizer,
) -> float:
    """Sends never block; stages keep their inputs and outputs in a queue, first in, first out."""
    device = next((p.device for p in stage.parameters()), torch.device("cpu"))
    link = _Neighbours(device)
    samples = sum(targets.shape[0] for _, targets in microbatches) if link.last else 0
    optimizer.zero_grad()
    queue: deque[tuple[Tensor, Tensor]] = deque()
    losses = []

    for inputs, targets in microbatches:
        source = inputs.to(device) if link.first else link.from_before()
        entry = source
        if not link.first and source.is_floating_point():
            source.requires_grad_()
            entry = source.clone()
        result = stage(entry)
        if link.last:
            mean = loss_fn(result, targets.to(device))
            result = mean * targets.shape[0] / samples
            losses.append(result.detach().double())
        else:
            link.forward(result)
        queue.append((source, result))

    while queue:
        source, result = queue.popleft()
        if link.last:
            if result.requires_grad:
                result.backward()
        elif result.is_floating_point():
            gradient = link.from_after(result.shape, result.dtype)
            if result.requires_grad:
                torch.autograd.backward([result], [gradient])
        if not link.first and source.is_floating_point():
            link.backward(torch.zeros_like(source) if source.grad is None else source.grad)
    link.flush()
    optimizer.step()

    message = [float(torch.stack(losses).sum())] if link.last else [None]
    dist.broadcast_object_list(message, src=link.world - 1)
    return message[0]
