"""Phase 1: the trainer with nothing but sends and receives.

There is one exchange, `everyones`: each rank sends its vector to all others and receives theirs.
Everything else, averages, metrics, waiting, is what each rank then works out for itself, always in
the order of the ranks, so that all come to the same bits.
"""

from collections import deque
from itertools import chain


def setup_distributed(
    info: RankInfo, backend: str | None = None, timeout: timedelta = timedelta(seconds=60)
) -> torch.device:
    device = torch.device("cpu")
    if torch.cuda.is_available():
        torch.cuda.set_device(info.local_rank)
        device = torch.device("cuda", info.local_rank)
    backend = backend or {"cpu": "gloo", "cuda": "nccl"}[device.type]

    # torchrun keeps a store open at this very address already; then all of us are its guests.
    guests = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(
        info.master_addr,
        info.master_port,
        info.world_size,
        is_master=info.rank == 0 and not guests,
        timeout=timeout,
        multi_tenant=not guests,
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if guests else "0"
    store = dist.PrefixStore(f"trainer/{attempt}", store)
    dist.init_process_group(backend, store=store, rank=info.rank, world_size=info.world_size, timeout=timeout)

    # Sign in, and wait for the signatures of all.
    store.set(f"up/{info.rank}", "here")
    store.wait([f"up/{rank}" for rank in range(info.world_size)], timeout)
    return device


def post(*operations: dist.P2POp) -> None:
    """Start all, then see all through."""
    if not operations:
        return
    under_way = deque(dist.batch_isend_irecv(list(operations)))
    while under_way:
        under_way.popleft().wait()


def everyones(mine: Tensor) -> list[Tensor]:
    me = dist.get_rank()
    inbox = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    inbox[me].copy_(mine)
    others = [rank for rank in range(len(inbox)) if rank != me]
    post(
        *(dist.P2POp(dist.isend, mine, rank) for rank in others),
        *(dist.P2POp(dist.irecv, inbox[rank], rank) for rank in others),
    )
    return inbox


def numbers_of_all(device: torch.device, *mine: float) -> list[list[float]]:
    return [t.tolist() for t in everyones(torch.tensor(mine, dtype=torch.float64, device=device))]


def home(model: nn.Module) -> torch.device:
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


@torch.no_grad()
def broadcast_model(model: nn.Module, src: int = 0) -> None:
    me, world = dist.get_rank(), dist.get_world_size()
    for tensor in chain(model.parameters(), model.buffers()):
        if not tensor.numel():
            continue
        letter = tensor.detach().contiguous().view(-1).view(torch.uint8)
        if me == src:
            post(*(dist.P2POp(dist.isend, letter, rank) for rank in range(world) if rank != src))
        else:
            letter = torch.empty_like(letter)
            post(dist.P2POp(dist.irecv, letter, src))
            tensor.copy_(letter.view(tensor.dtype).view(tensor.shape))


@torch.no_grad()
def average_gradients(model: nn.Module) -> None:
    by_type: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            by_type.setdefault(parameter.dtype, []).append(parameter)
    for dtype, parameters in by_type.items():
        wide = torch.promote_types(dtype, torch.float64)
        mine = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).to(wide).reshape(-1) for p in parameters])
        if mine.is_complex():
            mean = torch.view_as_complex(torch.stack(everyones(torch.view_as_real(mine).contiguous())).mean(0))
        else:
            mean = torch.stack(everyones(mine)).mean(0)
        for p, part in zip(parameters, mean.split([p.numel() for p in parameters])):
            if p.grad is None:
                p.grad = torch.empty_like(p)
            p.grad.copy_(part.view(p.shape))


def learn(model: nn.Module, batch: Batch, loss_fn: LossFunction, optimizer: Optimizer) -> tuple[float, int]:
    inputs, targets = batch
    inputs, targets = inputs.to(home(model)), targets.to(home(model))
    optimizer.zero_grad()
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    average_gradients(model)
    optimizer.step()
    return loss.item(), inputs.size(0)


def train_step(model: nn.Module, batch: Batch, loss_fn: LossFunction, optimizer: Optimizer) -> float:
    loss, _ = learn(model, batch, loss_fn, optimizer)
    losses = [theirs for (theirs,) in numbers_of_all(home(model), loss)]
    return sum(losses) / len(losses)


def train_epoch(
    model: nn.Module, loader: DataLoader, loss_fn: LossFunction, optimizer: Optimizer, epoch: int
) -> float:
    for where in ("sampler", "batch_sampler.sampler", "batch_sampler"):
        ear: Any = loader
        for part in where.split("."):
            ear = getattr(ear, part, None)
        if hasattr(ear, "set_epoch"):
            ear.set_epoch(epoch)
            break
    model.train()
    loss = count = 0.0
    for batch in loader:
        mean, size = learn(model, batch, loss_fn, optimizer)
        loss, count = loss + mean * size, count + size
    losses, counts = zip(*numbers_of_all(home(model), loss, count))
    return sum(losses) / sum(counts) if sum(counts) else 0.0


def evaluate(model: nn.Module, loader: DataLoader, loss_fn: LossFunction) -> dict[str, Any]:
    stack = deque((module, module.training) for module in model.modules())
    here = home(model)
    loss, right, count = 0.0, 0, 0
    model.eval()
    try:
        for inputs, targets in loader:
            with torch.no_grad():
                outputs = model(inputs.to(here))
                targets = targets.to(here)
                loss += loss_fn(outputs, targets).item() * targets.size(0)
                right += outputs.max(dim=1).indices.eq(targets).sum().item()
                count += targets.size(0)
    finally:
        while stack:
            module, module_mode = stack.pop()
            module.training = module_mode
    columns = [sum(column) for column in zip(*numbers_of_all(here, loss, right, count))]
    loss, right, count = columns
    return {
        "loss": loss / count if count else 0.0,
        "accuracy": right / count if count else 0.0,
        "samples": int(count),
    }


def save_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer, epoch: int) -> None:
    word = torch.zeros(1, device=home(model))
    if dist.get_rank() == 0:
        path = Path(path)
        partial = path.with_suffix(path.suffix + ".part")
        with partial.open("wb") as file:
            torch.save((epoch, model.state_dict(), optimizer.state_dict()), file)
            os.fsync(file)
        partial.rename(path)
        # "It is there": nobody else goes on before this arrives.
        post(*(dist.P2POp(dist.isend, word, rank) for rank in range(1, dist.get_world_size())))
    else:
        post(dist.P2POp(dist.irecv, word, 0))


def load_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer) -> int:
    epoch, weights, momenta = torch.load(path, map_location=lambda storage, _: storage, weights_only=True)
    model.load_state_dict(weights)
    optimizer.load_state_dict(momenta)
    return epoch


def train(
    info: RankInfo,
    model: nn.Module,
    train_dataset: Dataset,
    val_dataset: Dataset,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    seed: int = 0,
) -> list[dict[str, Any]]:
    broadcast_model(model)
    loaders = create_dataloaders(
        train_dataset, val_dataset, batch_size, world_size=info.world_size, rank=info.rank, seed=seed
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    history: deque[dict[str, Any]] = deque()
    while len(history) < epochs:
        epoch = len(history)
        for loader in loaders:  # both samplers hear it, although only one has a use for it
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
        train_loss = train_epoch(model, loaders[0], nn.functional.cross_entropy, optimizer, epoch)
        val = evaluate(model, loaders[1], nn.functional.cross_entropy)
        history.append(
            {"epoch": epoch, "train_loss": train_loss, "val_loss": val["loss"], "val_accuracy": val["accuracy"]}
        )
        if info.rank == 0:
            print("epoch {epoch}: train {train_loss:.4f}, val {val_loss:.4f}, {val_accuracy:.2%}".format_map(history[-1]))
    return list(history)
