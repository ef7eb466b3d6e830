"""Phase 1 in a functional key.

Collectives come as functions from tensor to tensor (`torch.distributed._functional_collectives`);
folds replace loops that add up; effects are confined to the leaves.
"""

import io
from functools import partial, reduce
from itertools import chain
from operator import add
from typing import Callable, Iterable, NamedTuple

import torch.distributed._functional_collectives as funcol
from template_data_loader import ensure


# ---- collectives as functions -------------------------------------------------------------------


def everywhere(operation: Callable[..., Tensor], *args: Any) -> Callable[[Tensor], Tensor]:
    return lambda tensor: funcol.wait_tensor(operation(tensor, *args, dist.group.WORLD))


total = lambda tensor: everywhere(funcol.all_reduce, "sum")(tensor)
mean = lambda tensor: everywhere(funcol.all_reduce, "avg")(tensor)
from_rank = lambda src: everywhere(funcol.broadcast, src)


def setup_distributed(
    info: RankInfo, backend: str | None = None, timeout: timedelta = timedelta(seconds=60)
) -> torch.device:
    gpu = torch.cuda.is_available()
    _ = gpu and torch.cuda.set_device(info.local_rank)
    dist.init_process_group(
        backend or ("nccl" if gpu else "gloo"),
        init_method=f"tcp://{info.master_addr}:{info.master_port}",
        timeout=timeout,
        world_size=info.world_size,
        rank=info.rank,
    )
    # a sum to which everybody has to contribute: nobody passes before all have come
    here = torch.device("cuda", info.local_rank) if dist.get_backend() == "nccl" else torch.device("cpu")
    ensure(total(torch.ones((), device=here)).item() == info.world_size, "not every rank is up")
    return torch.device("cuda", info.local_rank) if gpu else torch.device("cpu")


def tensors_of(model: nn.Module) -> Iterable[Tensor]:
    return chain(model.parameters(), model.buffers())


def device_of(model: nn.Module) -> torch.device:
    return next(map(lambda t: t.device, tensors_of(model)), torch.device("cpu"))


@torch.no_grad()
def broadcast_model(model: nn.Module, src: int = 0) -> None:
    as_bytes = lambda t: t.detach().contiguous().flatten().view(torch.uint8)
    for tensor in filter(torch.numel, tensors_of(model)):
        tensor.copy_(from_rank(src)(as_bytes(tensor)).view(tensor.dtype).view(tensor.shape))


@torch.no_grad()
def average_gradients(model: nn.Module) -> None:
    gradient = lambda p: torch.zeros_like(p) if p.grad is None else p.grad
    widened = lambda g: g.to(torch.promote_types(g.dtype, torch.float64)).contiguous()
    for parameter in filter(lambda p: p.requires_grad, model.parameters()):
        parameter.grad = mean(widened(gradient(parameter))).to(parameter.dtype)


# ---- steps, epochs ------------------------------------------------------------------------------


class Seen(NamedTuple):
    """Sums over samples; they form a monoid."""

    loss: Any = 0.0
    correct: Any = 0
    samples: int = 0

    def __add__(self, other: "Seen") -> "Seen":  # type: ignore[override]
        return Seen(*map(add, tuple(self), tuple(other)))

    def over_ranks(self, device: torch.device) -> "Seen":
        return Seen(*total(torch.tensor([float(v) for v in self], dtype=torch.float64, device=device)).tolist())


def moved(batch, device: torch.device) -> tuple[Tensor, Tensor]:
    inputs, targets = map(lambda part: part.to(device), batch)
    return inputs, targets


def local_step(model: nn.Module, loss_fn, optimizer: Optimizer, batch) -> Seen:
    inputs, targets = moved(batch, device_of(model))
    optimizer.zero_grad()
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    average_gradients(model)
    optimizer.step()
    return Seen(loss.item() * len(inputs), 0, len(inputs))


def train_step(model: nn.Module, batch, loss_fn, optimizer: Optimizer) -> float:
    seen = local_step(model, loss_fn, optimizer, batch)
    own = seen.loss / seen.samples
    return mean(torch.tensor(own, dtype=torch.float64, device=device_of(model))).item()


def train_epoch(model: nn.Module, loader, loss_fn, optimizer: Optimizer, epoch: int) -> float:
    deaf = lambda _epoch: None
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    hears = getattr(sampler, "set_epoch", None) or getattr(inner, "set_epoch", None) or deaf
    hears(epoch)
    step = partial(local_step, model.train(), loss_fn, optimizer)
    seen = reduce(add, map(step, loader), Seen()).over_ranks(device_of(model))
    return seen.loss / seen.samples if seen.samples else 0.0


# ---- checkpoints --------------------------------------------------------------------------------


def serialized(**content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def save_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer, epoch: int) -> None:
    if dist.get_rank() == 0:
        target = Path(path)
        draft = target.with_name(target.name + ".draft")
        draft.write_bytes(serialized(model=model.state_dict(), optimizer=optimizer.state_dict(), epoch=epoch))
        draft.replace(target)
    total(torch.zeros(1, device=device_of(model)))  # nobody leaves before rank 0 has come


def load_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer) -> int:
    content = torch.load(io.BytesIO(Path(path).read_bytes()), map_location=device_of(model), weights_only=True)
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    return int(content["epoch"])
