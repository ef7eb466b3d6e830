"""Data-parallel training by somebody who has been burnt.

Every rank checks what it can check alone, and the ranks compare notes wherever they meet anyway:
models after the broadcast (by a digest), gradients (by a plan of who has which), losses (finite or
not). A check that finds something raises on *every* rank, so that none is left waiting.
"""

import hashlib
import math
import string
import time
import uuid
import warnings
from collections.abc import Iterator

# ------------------------------------------------------------------------------------------------
# Environment
# ------------------------------------------------------------------------------------------------


def _first_host(nodes: str) -> str:
    """`rack[1-2]node[3-4],x` -> `rack1node3`, refusing what Slurm would not write."""
    name, i = "", 0
    while i < len(nodes) and nodes[i] != ",":
        if nodes[i] == "[":
            end = nodes.find("]", i)
            if end < 0:
                raise ValueError(f"SLURM_JOB_NODELIST: a bracket is never closed in {nodes!r}")
            first = nodes[i + 1 : end].replace("-", ",").split(",", 1)[0]
            if not first or any(c not in string.digits for c in first):
                raise ValueError(f"SLURM_JOB_NODELIST: no number after the bracket in {nodes!r}")
            name, i = name + first, end + 1
        elif nodes[i] == "]":
            raise ValueError(f"SLURM_JOB_NODELIST: a bracket is never opened in {nodes!r}")
        else:
            name, i = name + nodes[i], i + 1
    if not name:
        raise ValueError(f"SLURM_JOB_NODELIST: no first host in {nodes!r}")
    return name


def read_rank_info(environ: Mapping[str, str]) -> RankInfo:
    def number(name: str) -> int:
        value = environ[name]
        digits = value[1:] if value[:1] == "-" else value
        if not digits or any(c not in string.digits for c in digits):
            raise ValueError(f"{name} should be an integer, but is {value!r}")
        return int(value)

    def launcher(rank_name: str, world_name: str, local_name: str) -> tuple[int, int, int] | None:
        there = [name for name in (rank_name, world_name) if name in environ]
        if not there:
            return None
        if len(there) == 1:
            (missing,) = {rank_name, world_name} - set(there)
            raise ValueError(f"{there[0]} is set, but {missing} is not")
        rank, world = number(rank_name), number(world_name)
        if world < 1:
            raise ValueError(f"{world_name} should be at least 1, but is {world}")
        if not 0 <= rank < world:
            raise ValueError(f"{rank_name} should be in 0..{world - 1}, but is {rank}")
        local = number(local_name) if local_name in environ else 0
        if local < 0:
            raise ValueError(f"{local_name} should not be negative, but is {local}")
        return rank, world, local

    def port() -> int:
        if "MASTER_PORT" not in environ:
            return 29500
        value = number("MASTER_PORT")
        if not 0 <= value <= 65535:
            raise ValueError(f"MASTER_PORT should be in 0..65535, but is {value}")
        return value

    who = launcher("RANK", "WORLD_SIZE", "LOCAL_RANK")
    if who is not None:
        return RankInfo(*who, environ.get("MASTER_ADDR", "127.0.0.1"), port())
    who = launcher("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    if who is not None:
        if "MASTER_ADDR" in environ:
            address = environ["MASTER_ADDR"]
        elif "SLURM_JOB_NODELIST" in environ:
            address = _first_host(environ["SLURM_JOB_NODELIST"])
        else:
            address = "127.0.0.1"
        return RankInfo(*who, address, port())
    return RankInfo(0, 1, 0, environ.get("MASTER_ADDR", "127.0.0.1"), port())


# ------------------------------------------------------------------------------------------------
# Process group
# ------------------------------------------------------------------------------------------------


def setup_distributed(
    info: RankInfo, backend: str | None = None, timeout: timedelta = timedelta(seconds=60)
) -> torch.device:
    if not 0 <= info.rank < info.world_size:
        raise ValueError(f"rank {info.rank} is not in a world of {info.world_size}")
    if dist.is_initialized():
        raise RuntimeError("there is a default process group already")
    if torch.cuda.is_available():
        if info.local_rank >= torch.cuda.device_count():
            raise RuntimeError(
                f"local rank {info.local_rank}, but {torch.cuda.device_count()} GPUs on this machine"
            )
        torch.cuda.set_device(info.local_rank)
        device = torch.device("cuda", info.local_rank)
    else:
        device = torch.device("cpu")
    chosen = backend or ("nccl" if device.type == "cuda" else "gloo")
    host = f"[{info.master_addr}]" if ":" in info.master_addr else info.master_addr
    dist.init_process_group(
        chosen,
        init_method=f"tcp://{host}:{info.master_port}",
        rank=info.rank,
        world_size=info.world_size,
        timeout=timeout,
    )
    try:
        if dist.get_backend() == "gloo":
            # like a barrier, but rank 0 names those who did not come
            dist.monitored_barrier(timeout=timeout, wait_all_ranks=True)
        else:
            dist.barrier()
        if (dist.get_rank(), dist.get_world_size()) != (info.rank, info.world_size):
            raise RuntimeError("the group disagrees with the launcher about who we are")
    except BaseException:
        dist.destroy_process_group()
        raise
    return device


def cleanup_distributed() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    assert not dist.is_initialized()


def _device_of(model: nn.Module) -> torch.device:
    devices = {tensor.device for tensor in _tensors(model)}
    if len(devices) > 1:
        raise RuntimeError(f"the model is spread over {sorted(map(str, devices))}")
    return devices.pop() if devices else torch.device("cpu")


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _agree(what: str, mine: object) -> None:
    """Raise on every rank unless all ranks say the same. A collective."""
    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, mine)
    if any(one != said[0] for one in said):
        raise RuntimeError(f"the ranks disagree on {what}: {said}")


def _layout(tensors: list[Tensor]) -> str:
    return hashlib.sha256(
        "|".join(f"{tuple(t.shape)}{t.dtype}{t.requires_grad}" for t in tensors).encode()
    ).hexdigest()[:16]


def _digest(tensors: list[Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            continue  # an extra state may be anything
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def broadcast_model(model: nn.Module, src: int = 0) -> None:
    if not 0 <= src < dist.get_world_size():
        raise ValueError(f"src should be in 0..{dist.get_world_size() - 1}, but is {src}")
    tensors = list(_tensors(model))
    _agree("the layout of the model, or the source", (src, _layout(tensors)))
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        wire = tensor.detach().contiguous().clone().reshape(-1).view(torch.uint8)
        dist.broadcast(wire, src)
        with torch.no_grad():
            tensor.detach().copy_(wire.view(tensor.dtype).reshape(tensor.shape))
    _agree("the model after the broadcast", _digest(tensors))


def average_gradients(model: nn.Module) -> None:
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not parameters:
        return
    world, device = dist.get_world_size(), parameters[0][1].device

    # Who has a gradient where? What no rank has stays None, as it would in one process: an
    # optimizer with momentum or weight decay moves a parameter even when its gradient is zero.
    holders = torch.tensor([p.grad is not None for _, p in parameters], dtype=torch.int32, device=device)
    dist.all_reduce(holders, op=dist.ReduceOp.SUM)

    for (name, parameter), count in zip(parameters, holders.tolist()):
        if count == 0:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.shape != parameter.shape:
            raise AssertionError(f"{name}: gradient of shape {tuple(parameter.grad.shape)}")
        wider = torch.promote_types(parameter.dtype, torch.float64)
        wide = parameter.grad.detach().to(wider).contiguous().div(world)
        dist.all_reduce(wide, op=dist.ReduceOp.SUM)
        with torch.no_grad():
            parameter.grad.copy_(wide)


# ------------------------------------------------------------------------------------------------
# Steps and epochs
# ------------------------------------------------------------------------------------------------


def _check_batch(batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise TypeError("a batch should be (inputs, targets)")
    inputs, targets = batch
    if len(inputs) != len(targets):
        raise ValueError(f"{len(inputs)} inputs, but {len(targets)} targets")
    if len(inputs) == 0:
        raise ValueError("an empty batch")
    return inputs, targets


def _reduced(values: list[float], device: torch.device) -> list[float]:
    wire = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(wire)
    return wire.tolist()


def _one_step(
    model: nn.Module, batch: Batch, loss_fn: LossFunction, optimizer: Optimizer
) -> tuple[float, int]:
    inputs, targets = _check_batch(batch)
    device = _device_of(model)
    inputs, targets = inputs.to(device), targets.to(device)
    optimizer.zero_grad(set_to_none=True)
    model.zero_grad(set_to_none=True)
    loss = loss_fn(model(inputs), targets)
    if loss.dim() != 0:
        raise ValueError(f"loss_fn should return one number, not a shape of {tuple(loss.shape)}")
    loss.backward()
    average_gradients(model)
    optimizer.step()
    return loss.item(), len(inputs)


def train_step(
    model: nn.Module, batch: Batch, loss_fn: LossFunction, optimizer: Optimizer
) -> float:
    loss, _ = _one_step(model, batch, loss_fn, optimizer)
    total, ranks = _reduced([loss, 1.0], _device_of(model))
    if ranks != dist.get_world_size():
        raise AssertionError(f"{ranks} ranks answered, of {dist.get_world_size()}")
    return total / ranks


def train_epoch(
    model: nn.Module, loader: DataLoader, loss_fn: LossFunction, optimizer: Optimizer, epoch: int
) -> float:
    candidates = [getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    candidates.append(getattr(candidates[1], "sampler", None))
    heard: list[object] = []
    for candidate in candidates:
        tell = getattr(candidate, "set_epoch", None)
        if tell is not None and not any(candidate is other for other in heard):
            heard.append(candidate)
            tell(epoch)

    device = _device_of(model)
    try:
        batches = len(loader)
    except TypeError:  # a stream: nobody knows
        batches = -1
    # Unequal numbers of batches would be a deadlock in the middle of the epoch.
    _agree("the number of batches", batches)
    model.train()
    products, count = [], 0
    for batch in loader:
        loss, samples = _one_step(model, batch, loss_fn, optimizer)
        products.append(loss * samples)
        count += samples
    total, samples = _reduced([math.fsum(products) if all(map(math.isfinite, products)) else sum(products), count], device)
    return total / samples if samples > 0 else 0.0


def evaluate(model: nn.Module, loader: DataLoader, loss_fn: LossFunction) -> dict[str, Any]:
    device = _device_of(model)
    former = [(module, module.training) for module in model.modules()]
    total, right, count = 0.0, 0, 0
    began = time.perf_counter()
    try:
        model.eval()
        with torch.no_grad():
            for batch in loader:
                inputs, targets = _check_batch(batch)
                inputs, targets = inputs.to(device), targets.to(device)
                outputs = model(inputs)
                total += float(loss_fn(outputs, targets)) * len(targets)
                right += int((outputs.argmax(dim=1) == targets).sum())
                count += len(targets)
    finally:
        for module, training in former:
            module.training = training
    took = time.perf_counter() - began
    all_total, all_right, all_count, all_took = _reduced([total, right, count, took], device)
    result = {
        "loss": all_total / all_count if all_count else 0.0,
        "accuracy": all_right / all_count if all_count else 0.0,
        "samples": round(all_count),
        "seconds": all_took / dist.get_world_size(),
    }
    if not 0.0 <= result["accuracy"] <= 1.0:
        raise AssertionError(f"an accuracy of {result['accuracy']}")
    return result


# ------------------------------------------------------------------------------------------------
# Checkpoints
# ------------------------------------------------------------------------------------------------


def save_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer, epoch: int) -> None:
    path = Path(path)
    fault: BaseException | None = None
    if dist.get_rank() == 0:
        draft = path.parent / f".{path.name}.{uuid.uuid4().hex}"
        try:
            content = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "epoch": int(epoch),
                "digest": _digest(list(model.state_dict().values())),
            }
            with open(draft, "xb") as file:
                torch.save(content, file)
                file.flush()
                os.fsync(file.fileno())
            # Read it again before it may replace a good one.
            again = torch.load(draft, map_location="cpu", weights_only=True)
            if _digest(list(again["model"].values())) != content["digest"]:
                raise OSError(f"{draft} does not hold what was written")
            os.replace(draft, path)
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)  # the rename too, not only the bytes
            finally:
                os.close(folder)
        except Exception as error:
            fault = error
            draft.unlink(missing_ok=True)
    (bad,) = _reduced([float(fault is not None)], _device_of(model))
    if fault is not None:
        raise fault
    if bad:
        raise RuntimeError("rank 0 could not write the checkpoint")
    if not path.exists():
        warnings.warn(f"{path} is not visible from rank {dist.get_rank()}", stacklevel=2)


def load_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer) -> int:
    content = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or not {"model", "optimizer", "epoch", "digest"} <= set(content):
        raise ValueError(f"{path} is not one of our checkpoints")
    if _digest(list(content["model"].values())) != content["digest"]:
        raise ValueError(f"{path} is damaged")
    model.load_state_dict(content["model"], strict=True)
    optimizer.load_state_dict(content["optimizer"])
    return content["epoch"]


# ------------------------------------------------------------------------------------------------
# Training
# ------------------------------------------------------------------------------------------------


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
    def say(*words: object) -> None:
        if info.rank == 0:
            print(*words, flush=True)

    if (info.rank, info.world_size) != (dist.get_rank(), dist.get_world_size()):
        raise ValueError("info is not about this process")
    if epochs < 0:
        raise ValueError(f"epochs should not be negative, but is {epochs}")
    _agree("the settings", (epochs, batch_size, lr, seed, len(train_dataset), len(val_dataset)))
    broadcast_model(model)
    train_loader, val_loader = create_dataloaders(
        train_dataset,
        val_dataset,
        batch_size,
        world_size=info.world_size,
        rank=info.rank,
        seed=seed,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loss_fn = nn.CrossEntropyLoss()
    say(f"# {info.world_size} rank(s), {dist.get_backend()}, {_device_of(model)}")
    say(f"# {sum(p.numel() for p in model.parameters() if p.requires_grad)} trainable parameters")
    say(f"# {len(train_loader)} steps of {batch_size} x {info.world_size} samples an epoch, lr {lr}")

    history: list[dict[str, Any]] = []
    for epoch in range(epochs):
        began = time.perf_counter()
        train_loss = train_epoch(model, train_loader, loss_fn, optimizer, epoch)
        result = evaluate(model, val_loader, loss_fn)
        _agree("the weights after an epoch", _digest(list(model.parameters())))
        entry = {
            "epoch": epoch,
            "train_loss": train_loss,
            "val_loss": result["loss"],
            "val_accuracy": result["accuracy"],
            "val_samples": result["samples"],
            "lr": lr,
        }
        history.append(entry)
        say(
            f"epoch {epoch}: train loss {train_loss:.5f}, val loss {entry['val_loss']:.5f}, "
            f"val accuracy {entry['val_accuracy']:.4f} ({time.perf_counter() - began:.1f} s)"
        )
        if not math.isfinite(train_loss):
            say("! the loss is not finite; a smaller learning rate might help")
    if history:
        best = max(history, key=lambda e: e["val_accuracy"])
        say(f"# best accuracy {best['val_accuracy']:.4f} after epoch {best['epoch']}")
    return history
