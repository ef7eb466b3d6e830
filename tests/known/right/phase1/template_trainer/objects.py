"""Phase 1: the trainer, for people who think in objects that are sent around.

Metrics, go-aheads and the model itself travel as Python objects. Only gradients, of which there are
many, go as tensors: down to rank 0, divided there, and back up.
"""

import dataclasses
import io
import shutil
from contextlib import contextmanager


@dataclasses.dataclass(frozen=True)
class RankInfo:
    """Who this process is among all, and where they meet."""

    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    master_port: int


class Environment:
    """A view of environment variables that knows their types and complains by name."""

    def __init__(self, variables):
        self.variables = variables

    def has_any(self, *names):
        return any(name in self.variables for name in names)

    def text(self, name, default):
        return self.variables.get(name, default)

    def number(self, name, default=None):
        value = self.variables.get(name, default)
        if value is None:
            raise ValueError(f"{name} must be set")
        try:
            return int(value)
        except ValueError:
            raise ValueError(f"{name} must be an integer") from None


def hosts(nodelist):
    """All hosts of a Slurm node list, lazily. More than needed, but right is right."""
    items, depth, start = [], 0, 0
    for at, char in enumerate(nodelist + ","):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and not depth:
            items.append(nodelist[start:at])
            start = at + 1
    for item in filter(None, items):
        yield from expanded(item)


def expanded(item):
    if "[" not in item:
        yield item
        return
    before, rest = item.split("[", 1)
    ranges, after = rest.split("]", 1)
    for piece in ranges.split(","):
        low, _, high = piece.partition("-")
        for number in range(int(low), int(high or low) + 1):
            for tail in expanded(after):
                yield f"{before}{number:0{len(low)}d}{tail}"


def read_rank_info(environ):
    env = Environment(environ)
    if env.has_any("RANK", "WORLD_SIZE"):
        kinds, address = ("RANK", "WORLD_SIZE", "LOCAL_RANK"), "127.0.0.1"
    elif env.has_any("SLURM_PROCID", "SLURM_NTASKS"):
        kinds = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
        address = next(hosts(env.text("SLURM_JOB_NODELIST", "")), "127.0.0.1")
    else:
        return RankInfo(0, 1, 0, env.text("MASTER_ADDR", "127.0.0.1"), env.number("MASTER_PORT", 29500))
    info = RankInfo(
        rank=env.number(kinds[0]),
        world_size=env.number(kinds[1]),
        local_rank=env.number(kinds[2], 0),
        master_addr=env.text("MASTER_ADDR", address),
        master_port=env.number("MASTER_PORT", 29500),
    )
    if info.world_size < 1:
        raise ValueError(f"{kinds[1]} must be positive ({kinds[0]} being {info.rank})")
    if not 0 <= info.rank < info.world_size:
        raise ValueError(f"{kinds[0]} must be less than {info.world_size}, and not negative")
    return info


def setup_distributed(info, backend=None, timeout=timedelta(seconds=60)):
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", info.local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend=backend or ("nccl" if cuda else "gloo"),
        init_method=f"tcp://{info.master_addr}:{info.master_port}",
        rank=info.rank,
        world_size=info.world_size,
        timeout=timeout,
    )
    if everyones(info.rank) != list(range(info.world_size)):
        raise RuntimeError("somebody is missing")
    return device


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


# All of it -----------------------------------------------------------------------------------------


def train(info, model, train_dataset, val_dataset, *, epochs, batch_size, lr, seed=0):
    broadcast_model(model)
    train_loader, val_loader = create_dataloaders(
        train_dataset, val_dataset, batch_size, world_size=info.world_size, rank=info.rank, seed=seed
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loss_fn = nn.CrossEntropyLoss()
    history = []
    for epoch in range(epochs):
        train_loss = train_epoch(model, train_loader, loss_fn, optimizer, epoch)
        val = evaluate(model, val_loader, loss_fn)
        history.append(
            {"epoch": epoch, "train_loss": train_loss, "val_loss": val["loss"], "val_accuracy": val["accuracy"]}
        )
        if info.rank == 0:
            print(", ".join(f"{key} {value:.4g}" for key, value in history[-1].items()))
    return history
