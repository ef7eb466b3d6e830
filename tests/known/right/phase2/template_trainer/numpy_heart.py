"""Owners are filled up one after the other; rank 0 alone decides when to write."""

import functools
import hashlib
import json
import math
import time


def _backward(model: nn.Module, batch: Batch, loss_fn: LossFunction, weight: float) -> Tensor:
    """Accumulate `weight` times the gradient of the batch's mean loss, and return that loss."""
    device = next(model.parameters()).device
    inputs, targets = (tensor.to(device) for tensor in batch)
    loss = loss_fn(model(inputs), targets)
    loss.backward(gradient=torch.full_like(loss, weight))
    return loss.detach().double() * weight


def train_step_accumulated(
    model: nn.Module,
    microbatches: Sequence[Batch],
    loss_fn: LossFunction,
    optimizer: Optimizer,
    averager: BucketedGradientAverager,
) -> float:
    *others, last = microbatches
    counts = [len(inputs) for inputs, _ in microbatches]
    weights = [count / sum(counts) for count in counts]
    optimizer.zero_grad(set_to_none=True)
    losses = []
    with averager.no_sync():
        for batch, weight in zip(others, weights, strict=False):
            losses.append(_backward(model, batch, loss_fn, weight))
    losses.append(_backward(model, last, loss_fn, weights[-1]))
    averager.finish()
    optimizer.step()
    everyone = [torch.zeros_like(losses[0]) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, torch.stack(losses).sum())
    return float(torch.stack(everyone).mean())


class ShardedOptimizer(Optimizer):
    """Owners by filling up one rank after the other; the shares come back in one flat all-gather.

    The inner optimizer is made in the first step, so that groups may be added freely before.
    Shares travel as bytes: numbers of different kinds can go in the same message.
    """

    def __init__(
        self, params: Iterable[Any], optimizer_class: type[Optimizer], **kwargs: Any
    ) -> None:
        self._make = functools.partial(optimizer_class, **kwargs)
        self._shares: list[list[Tensor]] = [[] for _ in range(dist.get_world_size())]
        self._inner: Optimizer | None = None
        self._pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
        probe = self._make([nn.Parameter(torch.zeros(2, 2))])
        super().__init__(params, {**probe.defaults})

    @staticmethod
    def _size(share: list[Tensor]) -> int:
        return sum(p.numel() for p in share)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        new = self.param_groups[-1]["params"]
        even = math.ceil((sum(map(self._size, self._shares)) + self._size(new)) / len(self._shares))
        rank = 0
        for p in new:
            while rank < len(self._shares) - 1 and self._size(self._shares[rank]) >= even:
                rank += 1
            self._shares[rank].append(p)
        if self._inner is not None:
            self._pair(self.param_groups[-1])

    def _part(self, outer: dict[str, Any]) -> dict[str, Any] | None:
        """The group of the inner optimizer: this rank's parameters, all other settings alike."""
        own = {id(p) for p in self._shares[dist.get_rank()]}
        members = [p for p in outer["params"] if id(p) in own]
        if not members:
            return None
        return {k: v for k, v in outer.items() if k != "param_names"} | {"params": members}

    def _pair(self, *outers: dict[str, Any]) -> None:
        pairs = [(outer, part) for outer in outers if (part := self._part(outer)) is not None]
        if not pairs:
            return
        fresh = self._make([part for _, part in pairs])
        # Some classes (Adagrad) have state from the beginning; what was loaded comes before it.
        fresh.state.update(self.state)
        if self._inner is None:
            self._inner = fresh
        else:
            for group in fresh.param_groups:
                self._inner.add_param_group(group)
            self._inner.state = fresh.state
        self.state = self._inner.state
        count = len(pairs)
        self._pairs += zip([outer for outer, _ in pairs], self._inner.param_groups[-count:], strict=True)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)  # makes new groups and a new state
        self._inner, self._pairs = None, []

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._inner is None:
            self._pair(*self.param_groups)
        for outer, inner in self._pairs:
            for key in outer.keys() - {"params", "param_names"}:
                inner[key] = outer[key]
        if self._inner is not None:
            self._inner.step()
        self._exchange()
        return loss

    def _exchange(self) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        lengths = [sum(p.numel() * p.element_size() for p in share) for share in self._shares]
        if max(lengths) == 0:
            return
        device = self.param_groups[0]["params"][0].device
        outgoing = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
        offset = 0
        for p in self._shares[rank]:
            raw = p.detach().reshape(-1).view(torch.uint8)
            outgoing[offset : offset + raw.numel()] = raw
            offset += raw.numel()
        incoming = torch.empty(world * max(lengths), dtype=torch.uint8, device=device)
        dist.all_gather_into_tensor(incoming, outgoing)
        for other, row in enumerate(incoming.view(world, -1)):
            offset = 0
            for p in self._shares[other]:
                nbytes = p.numel() * p.element_size()
                if other != rank:
                    # A clone, since a view as another dtype wants its bytes aligned.
                    p.copy_(row[offset : offset + nbytes].clone().view(p.dtype).view(p.shape))
                offset += nbytes


_SECONDS_BETWEEN_SAVES = 2.0
_MAGIC = b"TRAIN\x01\n"


def _store_file(path: Path, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """A line of JSON that describes, then the bytes of the tensors, one after another."""
    blobs = []
    header["tensors"] = []
    for name, tensor in tensors.items():
        cpu = tensor.detach().cpu().contiguous()
        blobs.append(cpu.reshape(-1).view(torch.uint8).numpy().tobytes() if cpu.numel() else b"")
        header["tensors"].append([name, str(cpu.dtype).removeprefix("torch."), list(cpu.shape)])
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(temporary, "wb") as file:
            file.write(_MAGIC + json.dumps(header).encode() + b"\n")
            for blob in blobs:
                file.write(blob)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _read_file(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with open(path, "rb") as file:
        if file.readline() != _MAGIC:
            raise ValueError(f"{path} is no file of this program")
        header = json.loads(file.readline())
        tensors = {}
        for name, dtype_name, shape in header["tensors"]:
            dtype = getattr(torch, dtype_name)
            count = math.prod(shape)
            raw = bytearray(file.read(count * dtype.itemsize))
            flat = torch.frombuffer(raw, dtype=dtype) if count else torch.empty(0, dtype=dtype)
            tensors[name] = flat.reshape(shape)
    return header, tensors


def _seed_for(*place: int) -> int:
    return int.from_bytes(hashlib.sha256(repr(place).encode()).digest()[:7], "big")


def _same_on_all(model: nn.Module, only_buffers: bool = False) -> None:
    """Rank 0's values for everybody, one flat message per dtype."""
    tensors = list(model.buffers()) if only_buffers else [*model.parameters(), *model.buffers()]
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        alike = [tensor.detach() for tensor in tensors if tensor.dtype is dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])
        dist.broadcast(flat, 0)
        for tensor, values in zip(alike, flat.split([tensor.numel() for tensor in alike]), strict=True):
            tensor.copy_(values.view(tensor.shape))


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
    """Rank 0 writes when two seconds have passed, and alone decides that: writing takes no talk.

    Random numbers (of dropout) are seeded before each step from the place in training, so that
    there is no random state to save.
    """
    path = Path(resume_from) if resume_from is not None else None
    chief, world = info.rank == 0, info.world_size
    history: list[dict[str, Any]] = []
    loss_fn = nn.functional.cross_entropy
    place = torch.zeros(4, dtype=torch.float64)  # epoch, samples of it, sum of losses, their number
    if chief and path is not None and path.is_file():
        header, tensors = _read_file(path)
        model.load_state_dict(tensors)
        place = torch.tensor(header["place"], dtype=torch.float64)
    device = next(model.parameters()).device
    place = place.to(device)
    dist.broadcast(place, 0)
    _same_on_all(model)
    first, seen = int(place[0]), int(place[1])
    loss_sum, count = float(place[2]), int(place[3])
    written = float("-inf")

    def write(epoch: int, seen: int, loss_sum: float, count: int, force: bool = False) -> None:
        nonlocal written
        if chief and path is not None and (force or time.monotonic() - written > _SECONDS_BETWEEN_SAVES):
            _store_file(path, {"place": [epoch, seen, loss_sum, count]}, model.state_dict())
            written = time.monotonic()

    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    averager = BucketedGradientAverager(model)
    sampler = ResumableDistributedSampler(train_dataset, world, info.rank, seed=seed)
    sampler.resume(first, seen)
    loader = DataLoader(train_dataset, batch_size=batch_size, sampler=sampler)
    for epoch in range(first, epochs):
        sampler.set_epoch(epoch)
        write(epoch, seen, loss_sum, count)
        model.train()
        batches = iter(loader)
        while True:
            torch.manual_seed(_seed_for(seed, epoch, seen, info.rank))
            batch = next(batches, None)
            if batch is None:
                break
            size = batch[0].shape[0]
            microbatches = split_microbatches(batch, min(size, accumulation_steps))
            loss = train_step_accumulated(model, microbatches, loss_fn, optimizer, averager)
            loss_sum, count = loss_sum + loss * size * world, count + size * world
            seen = min(seen + size * world, len(train_dataset))
            write(epoch, seen, loss_sum, count)
        _same_on_all(model, only_buffers=True)
        result = evaluate(model, val_dataset, loss_fn, batch_size)
        history.append({
            "epoch": epoch,
            "train_loss": loss_sum / count if count else 0.0,
            "val_loss": result["loss"],
            "val_accuracy": result["accuracy"],
        })
        seen, loss_sum, count = 0, 0.0, 0
        write(epoch + 1, 0, 0.0, 0, force=True)
        if chief:
            last = history[-1]
            print(f"epoch {epoch}: train {last['train_loss']:.4f}, val {last['val_loss']:.4f}, "
                  f"right {last['val_accuracy']:.2%}", flush=True)
    dist.barrier()
    return history
