"""Buckets are slices of one flat tensor; a thread of each rank tells the store that it lives."""

import itertools
import json
import threading
import time
import weakref
import zlib
from contextlib import suppress
from datetime import timedelta


def ring_all_reduce(tensor: Tensor) -> None:
    """All receives of the second pass are posted up front, and chunks land where they belong.

    The bounds of the uneven chunks are those of `shard_without_padding`.
    """
    size, rank = dist.get_world_size(), dist.get_rank()
    if size == 1:
        return
    source = tensor.detach()
    flat = source.reshape(-1).clone()
    shares = [shard_without_padding(flat.numel(), size, other) for other in range(size)]
    chunks = [flat[share.start : share.stop] for share in shares]
    nxt, prev = (rank + 1) % size, (rank - 1) % size

    # First pass. After it this rank has the whole sum of chunk number `rank`.
    for step in range(1, size):
        give, take = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        sending = dist.isend(give, nxt, tag=step) if give.numel() else None
        if take.numel():
            summand = torch.empty_like(take)
            dist.irecv(summand, prev, tag=step).wait()
            take += summand
        if sending is not None:
            sending.wait()

    # Second pass. Each chunk is sent once and received once: no buffer is used twice.
    arrivals = {}
    for step in range(1, size):
        take = chunks[(rank - step) % size]
        if take.numel():
            arrivals[step] = dist.irecv(take, prev, tag=size + step)
    sends = []
    for step in range(1, size):
        if step - 1 in arrivals:
            arrivals.pop(step - 1).wait()
        give = chunks[(rank - step + 1) % size]
        if give.numel():
            sends.append(dist.isend(give, nxt, tag=size + step))
    for handle in (*arrivals.values(), *sends):
        handle.wait()
    source.copy_(flat.view(source.shape))


class _Arena:
    """All numbers of one kind in one flat tensor; buckets are slices of it."""

    def __init__(self, params: list[nn.Parameter], cap: float) -> None:
        self.flat = torch.zeros(sum(p.numel() for p in params), dtype=params[0].dtype, device=params[0].device)
        self.spans: list[tuple[int, int]] = []  # of the buckets
        self.members: list[list[nn.Parameter]] = []
        self.offset: dict[int, int] = {}
        position = 0
        for p in params:
            begin = self.spans[-1][0] if self.spans else 0
            end = position + p.numel()
            if not self.spans or (end - begin) * self.flat.element_size() > cap:
                self.spans.append((position, end))
                self.members.append([p])
            else:
                self.spans[-1] = (begin, end)
                self.members[-1].append(p)
            self.offset[id(p)] = position
            position = end

    def part(self, p: nn.Parameter) -> Tensor:
        start = self.offset[id(p)]
        return self.flat[start : start + p.numel()].view(p.shape)


class BucketedGradientAverager:
    """One arena per dtype, sliced into buckets, which leave in a fixed order."""

    def __init__(self, model: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        by_kind: dict[Any, list[nn.Parameter]] = {}
        order = [p for p in model.parameters() if p.requires_grad]
        order.reverse()
        for p in order:
            by_kind.setdefault((p.dtype, p.device), []).append(p)
        self._arenas = [_Arena(params, bucket_cap_mb * 1048576) for params in by_kind.values()]
        rank_of = {id(p): i for i, p in enumerate(order)}
        # Over all arenas: the bucket whose last parameter comes first in the order leaves first.
        self._queue = sorted(
            ((arena, b) for arena in self._arenas for b in range(len(arena.spans))),
            key=lambda item: rank_of[id(item[0].members[item[1]][-1])],
        )
        self._position = {id(p): k for k, (arena, b) in enumerate(self._queue) for p in arena.members[b]}
        self._collecting = True
        self._clear()
        me = weakref.proxy(self)

        def after(p: Tensor) -> None:
            try:
                me._after_accumulation(p)
            except ReferenceError:
                pass  # the averager is gone

        self._handles = [p.register_post_accumulate_grad_hook(after) for p in order]

    def __del__(self) -> None:
        for handle in self.__dict__.get("_handles", []):
            handle.remove()

    def _clear(self) -> None:
        self._counts = [len(arena.members[b]) for arena, b in self._queue]
        self._done: set[int] = set()
        self._futures: list[torch.futures.Future] = []
        self._stale = False

    def _after_accumulation(self, p: Tensor) -> None:
        k = self._position[id(p)]
        if k < len(self._futures):
            self._stale = True
        elif self._collecting and id(p) not in self._done:
            self._done.add(id(p))
            self._counts[k] -= 1
            self._advance(everything=False)

    def _advance(self, everything: bool) -> None:
        while len(self._futures) < len(self._queue):
            k = len(self._futures)
            if self._counts[k] and not everything:
                return
            self._futures.append(self._go(k))

    @torch.no_grad()
    def _go(self, k: int) -> torch.futures.Future:
        arena, b = self._queue[k]
        for p in arena.members[b]:
            part = arena.part(p)
            part.zero_() if p.grad is None else part.copy_(p.grad)
        begin, end = arena.spans[b]
        return dist.all_reduce(arena.flat[begin:end], async_op=True).get_future()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        collecting = self._collecting
        self._collecting = False
        try:
            yield
        finally:
            self._collecting = collecting

    @torch.no_grad()
    def finish(self) -> None:
        if not self._queue:
            return
        self._advance(everything=True)
        torch.futures.wait_all(self._futures)
        verdicts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(verdicts, self._stale)
        if any(verdicts):
            torch.futures.wait_all([self._go(k) for k in range(len(self._queue))])
        for arena in self._arenas:
            arena.flat /= dist.get_world_size()
            for p in (p for members in arena.members for p in members):
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                p.grad.copy_(arena.part(p))
        self._clear()


def train_step_accumulated(
    model: nn.Module,
    microbatches: Sequence[Batch],
    loss_fn: LossFunction,
    optimizer: Optimizer,
    averager: BucketedGradientAverager,
) -> float:
    """The step's loss travels the ring, too: a use for `ring_all_reduce`."""
    sizes = [int(targets.shape[0]) for _, targets in microbatches]
    parameter = next(iter(model.parameters()))
    place = {"device": parameter.device, "non_blocking": True}

    def run(k: int) -> float:
        inputs, targets = microbatches[k]
        loss = loss_fn(model(inputs.to(**place)), targets.to(**place))
        (loss * sizes[k] / sum(sizes)).backward()
        return loss.item() * sizes[k]

    optimizer.zero_grad()
    with averager.no_sync():
        total = sum(run(k) for k in range(len(sizes) - 1))
    total += run(len(sizes) - 1)
    averager.finish()
    optimizer.step()

    report = torch.tensor([total, float(sum(sizes))], dtype=torch.float64, device=parameter.device)
    ring_all_reduce(report)
    return float(report[0] / report[1])


def _without_params(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if not key.startswith("param")}


class ShardedOptimizer(Optimizer):
    """A small optimizer for each parameter that this rank owns, all of them on one state.

    Updated values go by `all_gather` in flat tensors per dtype, padded to the largest share.
    """

    def __init__(
        self, params: Iterable[Any], optimizer_class: type[Optimizer], **kwargs: Any
    ) -> None:
        self._build = lambda p, options: optimizer_class([{"params": [p], **options}], **kwargs)
        self._rank, self._size = dist.get_rank(), dist.get_world_size()
        self._elements = torch.zeros(self._size, dtype=torch.int64)
        self._table: list[tuple[Tensor, int]] = []
        self._minis: list[tuple[int, Tensor, Optimizer]] = []  # group number, parameter, optimizer
        template = self._build(torch.zeros(1, 1, requires_grad=True), {})
        super().__init__(params, dict(template.defaults))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        number, group = len(self.param_groups) - 1, self.param_groups[-1]
        for p in group["params"]:
            owner = int(self._elements.argmin())
            self._elements[owner] += p.numel()
            self._table.append((p, owner))
            if owner == self._rank:
                mini = self._build(p, _without_params(group))
                self.state.update(mini.state)  # Adagrad, for one, has some from the start
                self._minis.append((number, p, mini))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if closure is None:
            answer = None
        else:
            with torch.enable_grad():
                answer = closure()
        for number, p, mini in self._minis:
            mini.state = self.state
            mini.param_groups[0].update(_without_params(self.param_groups[number]))
            if p.grad is not None:
                mini.step()
        with torch.no_grad():
            for kind in dict.fromkeys((p.dtype, p.device) for p, _ in self._table):
                self._gather([(p, owner) for p, owner in self._table if (p.dtype, p.device) == kind])
        return answer

    def _gather(self, table: list[tuple[Tensor, int]]) -> None:
        shares = [[p for p, owner in table if owner == rank] for rank in range(self._size)]
        longest = max(sum(p.numel() for p in share) for share in shares)
        like = table[0][0]
        flats = [torch.zeros(longest, dtype=like.dtype, device=like.device) for _ in shares]
        mine = torch.zeros_like(flats[0])
        if shares[self._rank]:
            own = torch.cat([p.detach().flatten() for p in shares[self._rank]])
            mine[: own.numel()] = own
        dist.all_gather(flats, mine)
        for flat, share in zip(flats, shares, strict=True):
            position = 0
            for p in share:
                p.copy_(flat[position : position + p.numel()].reshape(p.shape))
                position += p.numel()


_BEAT = 1.0
_SILENCE = 20.0  # so long without a beat, and a rank counts as lost
_runs = itertools.count()


class _Heartbeat:
    """A thread of each rank tells the store once a second that it lives, and how it is.

    After an error of the communication each rank looks at the others' hearts for a while. One
    that does not beat is that of a dead rank (or of a stopped one). If all beat, a rank is late:
    one that has noticed nothing yet, or that was still at work when another's patience ended.
    """

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.count = 0
        self.last_work = time.time()
        self.failed_at: float | None = None
        self.timed_out = False
        self.ended = threading.Event()
        self.store_lives = True
        self.answered = time.monotonic()

    def worked(self) -> None:
        self.last_work = time.time()

    def __enter__(self) -> _Heartbeat:
        if self.world > 1:
            # A connection of its own: the main thread may be waiting on the other one.
            store = dist.distributed_c10d._get_default_store().clone()
            self.store = dist.PrefixStore(f"heart{next(_runs)}", store)
            self.known: dict[int, dict[str, Any]] = {}
            self.verdict: list[int] | None = None
            self.watching = threading.Event()
            self.thread = threading.Thread(target=self._live, daemon=True)
            self.thread.start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self.world == 1:
            return
        if not isinstance(error, RuntimeError) or not self._is_about_connections(str(error)):
            self.ended.set()
            self.thread.join(5)
            return
        lost = self._diagnose(str(error))
        if not lost:
            return
        who = " and ".join(f"rank {number}" for number in lost)
        raise RuntimeError(f"training ends here: {who} gave no sign of life or came too late") from error

    @staticmethod
    def _is_about_connections(text: str) -> bool:
        return any(hint in text.lower() for hint in ("connect", "gloo", "timed out", "closure", "socket"))

    # -- what the thread does; it alone talks to the store

    def _live(self) -> None:
        try:
            while not self.ended.is_set():
                self.count += 1
                state = {"n": self.count, "work": self.last_work, "failed": self.failed_at, "timeout": self.timed_out}
                self.store.set(f"beat{self.rank}", json.dumps(state))
                if self.watching.is_set():
                    self._look()
                self.answered = time.monotonic()
                self.ended.wait(0.25 if self.watching.is_set() else _BEAT)
        except Exception:
            self.store_lives = False

    def _look(self) -> None:
        if self.verdict is not None:
            self.store.set("lost", json.dumps(self.verdict))
        elif self.store.check(["lost"]):
            self.verdict = json.loads(self.store.get("lost"))
        for other in range(self.world):
            if other != self.rank and self.store.check([f"beat{other}"]):
                self.known[other] = json.loads(self.store.get(f"beat{other}"))

    # -- what the main thread does after an error

    def _hang_up(self) -> None:
        """Let the others know: a receive that times out closes every connection of this rank."""
        handles = []
        for other in range(self.world):
            if other != self.rank:
                with suppress(RuntimeError):
                    buffer = torch.empty(1)
                    handles.append((dist.irecv(buffer, other, tag=65_001), buffer))
        for handle, _ in handles:
            with suppress(RuntimeError):
                handle.wait(timedelta(milliseconds=10))

    def _diagnose(self, text: str) -> list[int]:
        self.timed_out = "timed out" in text.lower() or "timeout" in text
        self.failed_at = time.time()
        self.answered = time.monotonic()
        self.watching.set()
        self._hang_up()
        others = [other for other in range(self.world) if other != self.rank]
        first: dict[int, int] = {}
        beating: set[int] = set()
        end = time.monotonic() + _SILENCE
        while time.monotonic() < end:
            if self.verdict:
                return self.verdict
            if not self.store_lives or time.monotonic() - self.answered > 8:
                # The store lived in the process of rank 0, unless that one had told us of its end.
                if self.known.get(0, {}).get("failed") is None:
                    return [0]
                break
            for other, state in list(self.known.items()):
                if state["n"] != first.setdefault(other, state["n"]):
                    beating.add(other)
            everyone_knows = len(beating) == len(others) and all(s["failed"] for s in self.known.values())
            if everyone_knows and self._late():
                break
            time.sleep(0.1)
        gone = [q for q in others if q not in beating and not self.known.get(q, {}).get("failed")]
        lost = gone or self._late() or [q for q in others if not self.known[q]["failed"]]
        if lost:
            self.verdict = lost
            time.sleep(2.5)  # the thread tells it, and goes on beating meanwhile
            self.ended.set()
        return lost

    def _late(self) -> list[int]:
        own = {"work": self.last_work, "failed": self.failed_at, "timeout": self.timed_out}
        states = {**self.known, self.rank: own}
        given_up = [state["failed"] for state in states.values() if state["failed"] and state["timeout"]]
        return [q for q, state in sorted(states.items()) if given_up and state["work"] > min(given_up)]


def _checkpoint(path: Path, payload: dict[str, Any]) -> None:
    """Write a sibling, then rename it: the old file is whole until the new one is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sibling = Path(f"{path}.{os.getpid()}")
    torch.save(payload, sibling)
    os.rename(sibling, path)


def _steps(loader: DataLoader, seed_next: Callable[[], None]) -> Iterator[list[Tensor]]:
    """The loader's batches; random numbers are seeded before each is fetched."""
    iterator = iter(loader)
    while True:
        seed_next()
        try:
            batch = next(iterator)
        except StopIteration:
            return
        yield batch


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
    """Rank 0 alone touches the file; a tensor of four numbers and a broadcast bring it to the others.

    The file is written after every step of the first few, then more and more rarely: at 1, 2, 4,
    8, 16 and from there every 16 steps, and at the end of each epoch.
    """
    rank, world = info.rank, info.world_size
    path = None if resume_from is None else Path(resume_from)
    device = next(model.parameters()).device
    epoch = seen = samples = 0
    loss_sum = 0.0
    entries: list[dict[str, Any]] = []
    with _Heartbeat(rank, world) as guard:
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)

        def share(tensors: Iterable[Tensor]) -> None:
            for tensor in tensors:
                buffer = tensor.detach()
                if not buffer.is_contiguous():
                    buffer = buffer.contiguous()
                dist.broadcast(buffer, src=0)
                if not tensor.is_contiguous():
                    tensor.detach().copy_(buffer)

        def save() -> None:
            if rank == 0 and path is not None:
                payload = {
                    "model": model.state_dict(),
                    "progress": torch.tensor([epoch, seen, loss_sum, samples], dtype=torch.float64),
                }
                _checkpoint(path, payload)
                guard.worked()

        def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
            guard.worked()
            return nn.functional.cross_entropy(outputs, targets)

        def seed_next() -> None:
            torch.manual_seed(zlib.crc32(f"{seed} {rank} {epoch}".encode()) << 20 ^ seen)

        progress = torch.full((4,), -1.0, dtype=torch.float64)
        if rank == 0 and path is not None and path.exists():
            saved = torch.load(path, map_location=device, weights_only=True)
            model.load_state_dict(saved["model"])
            progress = saved["progress"]
        progress = progress.to(device)
        dist.broadcast(progress, src=0)
        share(model.parameters())
        share(model.buffers())
        if float(progress[0]) >= 0:
            epoch, seen, samples = (int(progress[i]) for i in (0, 1, 3))
            loss_sum = float(progress[2])
        else:
            save()

        averager = BucketedGradientAverager(model)
        sampler = ResumableDistributedSampler(train_dataset, world, rank, seed=seed, shuffle=True)
        sampler.resume(epoch, seen)
        loader = DataLoader(train_dataset, batch_size=batch_size, sampler=sampler)
        step = 0
        while epoch < epochs:
            sampler.set_epoch(epoch)
            model.train()
            for batch in _steps(loader, seed_next):
                n = batch[0].size(0)
                microbatches = split_microbatches(batch, min(n, accumulation_steps))
                mean = train_step_accumulated(model, microbatches, loss_fn, optimizer, averager)
                step += 1
                seen = min(len(train_dataset), seen + n * world)
                loss_sum += mean * n * world
                samples += n * world
                if step in (1, 2, 4, 8) or step % 16 == 0:
                    save()
            share(model.buffers())
            metrics = evaluate(model, val_dataset, loss_fn, batch_size)
            entry = {
                "epoch": epoch, "train_loss": loss_sum / max(1, samples), "val_loss": metrics["loss"],
                "val_accuracy": metrics["accuracy"],
            }
            entries.append(entry)
            epoch, seen, loss_sum, samples = epoch + 1, 0, 0.0, 0
            save()
            if rank == 0:
                print(f"epoch {entry['epoch']}: {entry['train_loss']:.4f} -> {entry['val_loss']:.4f} ({entry['val_accuracy']:.1%})", flush=True)
        if path is not None:
            dist.barrier()
    return entries
