"""Phase 1, trainer.

Gradients are handled as lists of tensors (`torch._foreach_*`) and reduced under a coalescing
manager, one call per dtype. The loss goes through an all-to-all in which each rank sends its number
to everybody.
"""

import tempfile
from dataclasses import replace
from itertools import groupby


def cleanup_distributed() -> None:
    try:
        group = dist.distributed_c10d._get_default_group()
    except (ValueError, RuntimeError):
        return
    dist.destroy_process_group(group)


def exchange(row: Tensor) -> Tensor:
    """The rows of all ranks, by an all-to-all: I send mine to each, each sends its own to me."""
    world = dist.get_world_size()
    outgoing = row.repeat(world, 1)
    incoming = torch.empty_like(outgoing)
    dist.all_to_all_single(incoming, outgoing)
    return incoming


def meet(device: torch.device) -> None:
    """Nobody has heard from everybody before everybody has spoken."""
    heard = exchange(torch.tensor([dist.get_rank()], device=device))
    assert heard.flatten().tolist() == list(range(dist.get_world_size()))


def device_of(model: nn.Module) -> torch.device:
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def by_dtype(tensors: list[Tensor]) -> list[list[Tensor]]:
    key = lambda tensor: str(tensor.dtype)  # noqa: E731
    return [list(group) for _, group in groupby(sorted(tensors, key=key), key=key)]


@torch.no_grad()
def broadcast_model(model: nn.Module, src: int = 0) -> None:
    tensors = [*model.parameters(), *model.buffers()]
    if not tensors:
        return
    # One message of bytes; the source deals a copy to each (a scatter of the same to all).
    as_bytes = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in tensors]
    mine = torch.cat(as_bytes)
    received = torch.empty_like(mine)
    if mine.numel():
        copies = [mine] * dist.get_world_size() if dist.get_rank() == src else None
        dist.scatter(received, copies, src=src)
    parts = received.split([b.numel() for b in as_bytes])
    for tensor, part in zip(tensors, parts):
        tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))


@torch.no_grad()
def average_gradients(model: nn.Module) -> None:
    trainable = [p for p in model.parameters() if p.requires_grad]
    for p in trainable:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    for gradients in by_dtype([p.grad for p in trainable]):
        wide = torch.promote_types(gradients[0].dtype, torch.float64)
        # complex numbers travel as pairs; empty tensors need not travel
        gradients = [g for g in gradients if g.numel()]
        if not gradients:
            continue
        messages = [g.to(wide, memory_format=torch.contiguous_format, copy=True) for g in gradients]
        letters = [torch.view_as_real(m) if m.is_complex() else m for m in messages]
        with dist._coalescing_manager(async_ops=True) as coalesced:
            for letter in letters:
                dist.all_reduce(letter)
        coalesced.wait()
        torch._foreach_div_(messages, dist.get_world_size())
        torch._foreach_copy_(gradients, messages)


def one_step(model: nn.Module, batch: Batch, loss_fn: LossFunction, optimizer: Optimizer) -> tuple[Tensor, int]:
    inputs, targets = (tensor.to(device_of(model), non_blocking=True) for tensor in batch)
    optimizer.zero_grad()
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    average_gradients(model)
    optimizer.step()
    return loss.detach(), inputs.shape[0]


def train_step(model: nn.Module, batch: Batch, loss_fn: LossFunction, optimizer: Optimizer) -> float:
    loss, _ = one_step(model, batch, loss_fn, optimizer)
    return exchange(loss.double().reshape(1)).mean().item()


def save_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer, epoch: int) -> None:
    if dist.get_rank() == 0:
        path = Path(path).absolute()
        # A folder of its own beside the target, on the same file system.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".saving-") as folder:
            draft = Path(folder, path.name)
            torch.save(
                {
                    "model_state": model.state_dict(),
                    "optimizer_state": optimizer.state_dict(),
                    "epoch": torch.tensor(epoch),
                },
                draft,
                _use_new_zipfile_serialization=False,
            )
            os.replace(draft, path)
    meet(device_of(model))


def load_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer) -> int:
    state = torch.load(path, map_location=device_of(model), weights_only=True)
    model.load_state_dict(state["model_state"])
    optimizer.load_state_dict(state["optimizer_state"])
    return int(state["epoch"])
