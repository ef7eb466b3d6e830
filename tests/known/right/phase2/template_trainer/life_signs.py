"""A padded ring; training is saved every 20 steps, and each rank reads the file for itself."""

import itertools
import json
import threading
import time
from contextlib import nullcontext, suppress
from datetime import timedelta


@torch.no_grad()
def ring_all_reduce(tensor: Tensor) -> None:
    """Sum over ranks in place: isend to the right, irecv from the left, chunks padded with zeros."""
    world, rank = dist.get_world_size(), dist.get_rank()
    if world == 1 or tensor.numel() == 0:
        return
    right, left = (rank + 1) % world, (rank - 1) % world
    size = -(-tensor.numel() // world)
    flat = tensor.new_zeros(size * world)
    flat[: tensor.numel()] = tensor.reshape(-1)
    chunks = list(flat.split(size))
    arriving = torch.empty_like(chunks[0])

    def exchange(outgoing: Tensor, incoming: Tensor) -> None:
        sending = dist.isend(outgoing, right)
        receiving = dist.irecv(incoming, left)
        receiving.wait()
        sending.wait()

    for step in range(world - 1):
        exchange(chunks[(rank - step) % world], arriving)
        chunks[(rank - step - 1) % world] += arriving
    for step in range(world - 1):
        exchange(chunks[(rank + 1 - step) % world], chunks[(rank - step) % world])
    tensor.copy_(flat[: tensor.numel()].view(tensor.shape))


def _device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def train_step_accumulated(
    model: nn.Module,
    microbatches: Sequence[Batch],
    loss_fn: LossFunction,
    optimizer: Optimizer,
    averager: BucketedGradientAverager,
) -> float:
    """Weigh each microbatch's mean loss by its share of the samples; sync on the last alone."""
    device = _device_of(model)
    total = sum(len(targets) for _, targets in microbatches)
    optimizer.zero_grad()
    mine = torch.zeros((), dtype=torch.float64, device=device)
    for number, (inputs, targets) in enumerate(microbatches, start=1):
        inputs, targets = inputs.to(device), targets.to(device)
        quiet = averager.no_sync() if number < len(microbatches) else nullcontext()
        with quiet:
            loss = loss_fn(model(inputs), targets) * (len(targets) / total)
            loss.backward()
        mine += loss.detach()
    averager.finish()
    optimizer.step()
    dist.all_reduce(mine)
    return mine.item() / dist.get_world_size()


_PATIENCE = 22.0  # seconds in which a living rank, once it has failed too, gives a sign
_PROBE_TAG = 40_961
_calls = itertools.count()


def _within(seconds: float, ask: Callable[..., Any], *args: Any) -> Any:
    """What `ask` answers, or an error if it does not in time: the store may be on a frozen rank."""
    answers: list[tuple[bool, Any]] = []

    def run() -> None:
        try:
            answers.append((True, ask(*args)))
        except Exception as error:
            answers.append((False, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not answers:
        raise ConnectionError("the store does not answer")
    if not answers[0][0]:
        raise ConnectionError("the store is gone") from answers[0][1]
    return answers[0][1]


class _LifeSigns:
    """A context in which an error of gloo becomes one that names the lost rank.

    Whoever fails leaves a sign in the store, hangs up on everybody, so that the others fail as
    well, and waits. A rank to which there was no connection, and of which there comes no sign, is
    the lost one. A late rank that comes while the others wait sees that somebody's patience ended
    before its own work did, and says so in its sign.
    """

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.others = [other for other in range(world) if other != rank]
        self.worked_until = time.time()
        self.signs: dict[int, dict[str, Any]] = {}
        self.kept: list[Any] = []
        if world > 1:
            store = dist.distributed_c10d._get_default_store()
            self.store = dist.PrefixStore(f"life-signs-{next(_calls)}", store)

    def worked(self) -> None:
        """Remember that this rank was still at its own work just now."""
        self.worked_until = time.time()

    def __enter__(self) -> _LifeSigns:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.world == 1 or not isinstance(error, RuntimeError):
            return
        text = str(error)
        if not any(word in text for word in ("gloo", "onnection", "pair closure", "imed out")):
            return  # a mistake of this rank's own
        lost = self._find(timed_out="imed out" in text or "timeout" in text)
        if lost:
            names = ", ".join(f"rank {rank}" for rank in lost)
            raise RuntimeError(f"lost {names}: died, or later than the group's timeout") from error

    def _connected(self, other: int) -> bool:
        buffer = torch.empty(1)
        try:
            self.kept.append((dist.irecv(buffer, other, tag=_PROBE_TAG), buffer))
        except RuntimeError:
            return False
        return True

    def _hang_up(self) -> None:
        """A receive that times out closes all connections of this rank."""
        for handle, _ in self.kept:
            with suppress(RuntimeError):
                handle.wait(timedelta(milliseconds=20))

    def _get(self, key: str) -> Any:
        if not _within(6, self.store.check, [key]):
            return None
        return json.loads(_within(6, self.store.get, key))

    def _set(self, key: str, value: Any) -> None:
        _within(6, self.store.set, key, json.dumps(value))

    def _look_for_signs(self) -> None:
        for other in self.others:
            if other not in self.signs:
                sign = self._get(f"sign/{other}")
                if sign is not None:
                    self.signs[other] = sign

    def _find(self, timed_out: bool) -> list[int]:
        broken = [other for other in self.others if not self._connected(other)]
        try:
            self._look_for_signs()
            late = any(s["timed_out"] and s["at"] < self.worked_until for s in self.signs.values())
            self._set(f"sign/{self.rank}", {"at": time.time(), "timed_out": timed_out, "late": late})
            self._hang_up()
            lost = [self.rank] if late else self._wait_for_signs(broken)
            self._set(f"heard/{self.rank}", True)
            if self.rank == 0:
                self._linger(lost)
            return lost
        except ConnectionError:
            self._hang_up()
            if 0 not in self.signs:
                return [0]  # the store lived with it
            return [other for other in broken if other not in self.signs]

    def _wait_for_signs(self, broken: list[int]) -> list[int]:
        begin = time.monotonic()
        while True:
            verdict = self._get("lost")
            if verdict:
                return verdict
            self._look_for_signs()
            silent = [other for other in broken if other not in self.signs]
            late = [other for other, sign in self.signs.items() if sign["late"]]
            waited = time.monotonic() - begin
            if late and not silent:
                lost = late
            elif silent and waited > _PATIENCE:
                lost = silent + late
            elif waited > _PATIENCE + 8:  # everybody gave a sign, and nobody says who it is
                return []
            else:
                time.sleep(0.2)
                continue
            self._set("lost", sorted(lost))
            return sorted(lost)

    def _linger(self, lost: list[int]) -> None:
        """The store may end with this process, so let the others read first."""
        waiting = [other for other in self.others if other not in lost]
        end = time.monotonic() + 15
        while waiting and time.monotonic() < end:
            waiting = [other for other in waiting if self._get(f"heard/{other}") is None]
            time.sleep(0.1)


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
    with _LifeSigns(rank, world) as guard:

        def criterion(outputs: Tensor, targets: Tensor) -> Tensor:
            guard.worked()
            return nn.functional.cross_entropy(outputs, targets)

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
                    guard.worked()
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
