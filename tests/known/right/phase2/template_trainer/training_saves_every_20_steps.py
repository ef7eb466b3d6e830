"""Training is saved every 20 steps, and each rank reads the file for itself."""

import itertools

_STEPS_BETWEEN_SAVES = 20


@torch.no_grad()
def _take_from_rank_0(tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        packed = tensor.detach().contiguous()
        dist.broadcast(packed, src=0)
        if packed.data_ptr() != tensor.data_ptr():
            tensor.copy_(packed)


def _write(path: Path, content: dict[str, Any]) -> None:
    """Beside the file first, and then in its place in one go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def _save(path: Path | None, rank: int, model: nn.Module, optimizer: Optimizer, progress: dict[str, Any]) -> None:
    """All ranks call this: buffers become alike, and each rank's random state goes into the file."""
    if path is None:
        return
    _take_from_rank_0(model.buffers())
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, torch.get_rng_state())
    if rank == 0:
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": states}
        _write(path, {**content, **progress})


def _load(path: Path | None, rank: int, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Where the file says training is; each rank reads it, and nobody goes on before all have."""
    progress = {"epoch": 0, "seen": 0, "loss_sum": 0.0, "count": 0}
    there = [path is not None and path.exists()]
    dist.broadcast_object_list(there, src=0)
    if there[0]:
        content = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(content["model"])
        learning_rates = [group["lr"] for group in optimizer.param_groups]
        optimizer.load_state_dict(content["optimizer"])
        for group, rate in zip(optimizer.param_groups, learning_rates, strict=True):
            group["lr"] = rate
        if len(content["random"]) == dist.get_world_size():
            torch.set_rng_state(content["random"][rank])
        progress = {key: content[key] for key in progress}
    dist.barrier()
    return progress


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
    accumulation_steps: int = 1,
    resume_from: str | Path | None = None,
) -> list[dict[str, Any]]:
    """Save every 20 steps and after each epoch; each rank reads the file for itself."""
    path = None if resume_from is None else Path(resume_from)
    rank, world = info.rank, info.world_size
    device = next(model.parameters()).device
    history = []
    criterion = nn.functional.cross_entropy
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    progress = _load(path, rank, model, optimizer)
    _take_from_rank_0(itertools.chain(model.parameters(), model.buffers()))
    sampler = ResumableDistributedSampler(train_dataset, world, rank, shuffle=True, seed=seed)
    # With a generator of its own the loader leaves the global one alone.
    loader = DataLoader(train_dataset, batch_size, sampler=sampler, generator=torch.Generator())
    averager = BucketedGradientAverager(model)
    if not progress["seen"] and progress["epoch"] < epochs:
        _save(path, rank, model, optimizer, progress)
    sampler.resume(progress["epoch"], progress["seen"])
    for epoch in range(progress["epoch"], epochs):
        sampler.set_epoch(epoch)
        model.train()
        for step, batch in enumerate(loader, start=1):
            size = len(batch[0])
            parts = split_microbatches([t.to(device) for t in batch], min(accumulation_steps, size))
            loss = train_step_accumulated(model, parts, criterion, optimizer, averager)
            progress["loss_sum"] += loss * size * world
            progress["count"] += size * world
            progress["seen"] = min(progress["seen"] + size * world, len(train_dataset))
            if step % _STEPS_BETWEEN_SAVES == 0:
                _save(path, rank, model, optimizer, progress)
        _take_from_rank_0(model.buffers())
        val = evaluate(model, val_dataset, criterion, batch_size)
        entry = {
            "epoch": epoch,
            "train_loss": progress["loss_sum"] / max(progress["count"], 1),
            "val_loss": val["loss"],
            "val_accuracy": val["accuracy"],
        }
        history.append(entry)
        progress = {"epoch": epoch + 1, "seen": 0, "loss_sum": 0.0, "count": 0}
        _save(path, rank, model, optimizer, progress)
        if rank == 0:
            print(", ".join(f"{key} {value:.4g}" for key, value in entry.items()), flush=True)
    dist.barrier()  # the last file is there for everybody
    return history
