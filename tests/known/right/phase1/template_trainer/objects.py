"""Phase 1: the trainer, for people who think in objects that are sent around.

Metrics, go-aheads and the model itself travel as Python objects. Only gradients, of which there are
many, go as tensors: down to rank 0, divided there, and back up.
"""

import dataclasses
import io
import shutil
from contextlib import contextmanager


# What is sent around -------------------------------------------------------------------------------


def everyones(mine):
    """A list of what each rank brought."""
    all_of_them = [None for _ in range(dist.get_world_size())]
    dist.all_gather_object(all_of_them, mine)
    return all_of_them


def from_rank(src, thing):
    """What rank `src` brought."""
    parcel = [thing if dist.get_rank() == src else None]
    dist.broadcast_object_list(parcel, src=src)
    return parcel[0]


@dataclasses.dataclass
class Result:
    """Sums over samples. Adding two results is what merging batches or ranks means."""

    loss_sum: float = 0.0
    right: int = 0
    samples: int = 0

    def __add__(self, other):
        return Result(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other))))

    def over_all_ranks(self):
        return sum((Result(*theirs) for theirs in everyones(dataclasses.astuple(self))), Result())

    @property
    def loss(self):
        return self.loss_sum / self.samples if self.samples else 0.0

    @property
    def accuracy(self):
        return self.right / self.samples if self.samples else 0.0


# Model and gradients -------------------------------------------------------------------------------


def where(model):
    return next((t.device for group in (model.parameters(), model.buffers()) for t in group), torch.device("cpu"))


@torch.no_grad()
def broadcast_model(model, src=0):
    tensors = list(model.parameters()) + list(model.buffers())
    parcel = None
    if dist.get_rank() == src:
        stream = io.BytesIO()
        torch.save([t.detach().cpu() for t in tensors], stream)
        parcel = stream.getvalue()
    theirs = torch.load(io.BytesIO(from_rank(src, parcel)), map_location="cpu", weights_only=True)
    for t, value in zip(tensors, theirs, strict=True):
        t.copy_(value)


@torch.no_grad()
def average_gradients(model):
    n = dist.get_world_size()
    for p in model.parameters():
        if not p.requires_grad:
            continue
        wide = torch.promote_types(p.dtype, torch.float32)
        if p.grad is None:
            total = torch.zeros(p.shape, dtype=wide, device=p.device)
        else:
            total = p.grad.detach().to(wide).clone(memory_format=torch.contiguous_format)
        dist.reduce(total, dst=0)
        if dist.get_rank() == 0:
            total /= n
        dist.broadcast(total, src=0)
        mean = total.to(p.dtype)
        if p.grad is None:
            p.grad = mean
        else:
            p.grad.copy_(mean)


# Steps ---------------------------------------------------------------------------------------------


def step_here(model, batch, loss_fn, optimizer):
    device = where(model)
    inputs, targets = batch
    inputs, targets = inputs.to(device), targets.to(device)
    optimizer.zero_grad()
    model.zero_grad()
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    average_gradients(model)
    optimizer.step()
    return Result(loss.item() * len(inputs), 0, len(inputs))


def train_step(model, batch, loss_fn, optimizer):
    losses = everyones(step_here(model, batch, loss_fn, optimizer).loss)
    return sum(losses) / len(losses)


def train_epoch(model, loader, loss_fn, optimizer, epoch):
    for owner in (loader, getattr(loader, "batch_sampler", None)):
        tell = getattr(getattr(owner, "sampler", None), "set_epoch", None)
        if tell is not None:
            tell(epoch)
            break
    model.train()
    result = sum((step_here(model, batch, loss_fn, optimizer) for batch in loader), Result())
    return result.over_all_ranks().loss


@contextmanager
def quiet(model):
    """Evaluation mode without gradients, and everything put back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def evaluate(model, loader, loss_fn):
    device, result = where(model), Result()
    with quiet(model):
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            right = (outputs.argmax(dim=1) == targets).sum().item()
            result += Result(loss_fn(outputs, targets).item() * len(targets), right, len(targets))
    result = result.over_all_ranks()
    return {"loss": result.loss, "accuracy": result.accuracy, "samples": result.samples}


# Checkpoints ---------------------------------------------------------------------------------------


def save_checkpoint(path, model, optimizer, epoch):
    written = None
    if dist.get_rank() == 0:
        stream = io.BytesIO()
        torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, stream)
        stream.seek(0)
        beside = Path(str(path) + ".new")
        with beside.open("wb") as file:
            shutil.copyfileobj(stream, file)
        written = beside.replace(path).stat().st_size
    # the news of it, which cannot come before the thing itself
    assert from_rank(0, written) > 0


def load_checkpoint(path, model, optimizer):
    found = torch.load(Path(path), weights_only=True, map_location="cpu")
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    return found["epoch"]
