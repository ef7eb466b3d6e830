"""Phase 2: ring, buckets, accumulation, sharding, evaluation, training."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Subset

from template_data_loader import ResumableDistributedSampler, shard_without_padding, split_microbatches


@dataclass(frozen=True)
class RankInfo:
    """Who this process is among all, and where they meet."""

    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    master_port: int


LossFunction = Callable[[Tensor, Tensor], Tensor]
Batch = tuple[Tensor, Tensor]


def ring_all_reduce(tensor: Tensor) -> None:
    """In-place sum on a ring, uneven chunks, each exchange one `batch_isend_irecv`."""
    world = dist.get_world_size()
    me = dist.get_rank()
    if world < 2:
        return
    target = tensor.detach()
    flat = target.reshape(-1).contiguous()  # a view of contiguous memory, else a copy
    parts = flat.tensor_split(world)  # some may be empty

    def rotate(outgoing: Tensor, incoming: Tensor) -> None:
        ops = []
        if outgoing.numel():
            ops.append(dist.P2POp(dist.isend, outgoing, (me + 1) % world))
        if incoming.numel():
            ops.append(dist.P2POp(dist.irecv, incoming, (me - 1) % world))
        if ops:
            for work in dist.batch_isend_irecv(ops):
                work.wait()

    for k in range(world - 1):
        into = parts[(me - k - 1) % world]
        scratch = torch.empty_like(into)
        rotate(parts[(me - k) % world], scratch)
        into.add_(scratch)
    for k in range(world - 1):
        rotate(parts[(me + 1 - k) % world], parts[(me - k) % world])
    if not target.is_contiguous():
        target.copy_(flat.view(target.shape))


class _Bucket:
    """Some parameters whose gradients travel together."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        self.params = params
        self.ready: set[int] = set()
        self.flat: Tensor | None = None
        self.work: Any = None

    def launch(self) -> None:
        self.flat = torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).detach().reshape(-1) for p in self.params]
        )
        self.work = dist.all_reduce(self.flat, async_op=True)

    def deliver(self, world: int) -> None:
        mean = self.flat / world
        for p, part in zip(self.params, mean.split([p.numel() for p in self.params]), strict=True):
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad.copy_(part.view_as(p))

    def reset(self) -> None:
        self.ready.clear()
        self.flat = self.work = None


class BucketedGradientAverager:
    """Averages gradients in buckets; copies travel, and the gradients stay local until `finish`.

    That is why a late backward (under `no_sync`, after a bucket has left) is easy to repair: the
    gradients hold the full local sums, and `finish` sends the buckets again if any rank needs it.
    Whether one does, all ranks must know, so `finish` asks them: a message of one number.
    """

    def __init__(self, model: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        cap = bucket_cap_mb * 2**20
        self._buckets: list[_Bucket] = []
        filling: dict[Any, tuple[_Bucket, int]] = {}
        self._place: dict[nn.Parameter, int] = {}
        for p in reversed([p for p in model.parameters() if p.requires_grad]):
            kind, size = (p.dtype, p.device), p.numel() * p.element_size()
            bucket, used = filling.get(kind, (None, 0))
            if bucket is None or used + size > cap:
                bucket, used = _Bucket([]), 0
                self._buckets.append(bucket)
            bucket.params.append(p)
            filling[kind] = (bucket, used + size)
            self._place[p] = self._buckets.index(bucket)
        self._next = 0
        self._silent = 0
        self._late = False
        me = weakref.ref(self)

        def hook(p: Tensor) -> None:
            averager = me()
            if averager is not None:
                averager._arrived(p)

        handles = [p.register_post_accumulate_grad_hook(hook) for p in self._place]
        self._detach = weakref.finalize(self, lambda hs: [h.remove() for h in hs], handles)

    def _arrived(self, p: Tensor) -> None:
        number = self._place[p]
        if number < self._next:
            self._late = True
            return
        if self._silent:
            return
        self._buckets[number].ready.add(id(p))
        while self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            if len(bucket.ready) < len(bucket.params):
                break
            self._send_next()

    def _send_next(self) -> None:
        self._buckets[self._next].launch()
        self._next += 1

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._silent += 1
        try:
            yield
        finally:
            self._silent -= 1

    def finish(self) -> None:
        if not self._buckets:
            return
        while self._next < len(self._buckets):
            self._send_next()
        late = torch.tensor(float(self._late), device=self._buckets[0].params[0].device)
        asked = dist.all_reduce(late, dist.ReduceOp.MAX, async_op=True)
        for bucket in self._buckets:
            bucket.work.wait()
        asked.wait()
        if late.item():
            for bucket in self._buckets:
                bucket.launch()
            for bucket in self._buckets:
                bucket.work.wait()
        world = dist.get_world_size()
        for bucket in self._buckets:
            bucket.deliver(world)
            bucket.reset()
        self._next, self._late = 0, False

    def close(self) -> None:
        """Take the hooks off the model."""
        self._detach()


def _weighted(loss_fn: LossFunction, total: int) -> LossFunction:
    """A loss that adds up over the parts of a batch of `total` samples to the batch's mean."""

    def part(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss_fn(outputs, targets) * targets.size(0) / total

    return part


def train_step_accumulated(
    model: nn.Module,
    microbatches: Sequence[Batch],
    loss_fn: LossFunction,
    optimizer: Optimizer,
    averager: BucketedGradientAverager,
) -> float:
    device = next(model.parameters()).device
    part_loss = _weighted(loss_fn, sum(targets.size(0) for _, targets in microbatches))
    pending = list(microbatches)
    report = torch.zeros(1, dtype=torch.float64, device=device)
    optimizer.zero_grad()
    while pending:
        inputs, targets = pending.pop(0)
        with averager.no_sync() if pending else nullcontext():
            loss = part_loss(model(inputs.to(device)), targets.to(device))
            report += loss.detach()
            loss.backward()
    # The loss can be summed up while the last buckets are still on their way.
    loss_sum = dist.all_reduce(report, async_op=True)
    averager.finish()
    optimizer.step()
    loss_sum.wait()
    return float(report) / dist.get_world_size()


class ShardedOptimizer(Optimizer):
    """Least loaded owner; one flat broadcast per owner and dtype; `state` looks into the inner one."""

    def __init__(
        self, params: Iterable[Any], optimizer_class: type[Optimizer], **kwargs: Any
    ) -> None:
        self._inner: Optimizer | None = None
        self._new_inner = lambda groups: optimizer_class(groups, **kwargs)
        self._owned_by: list[list[nn.Parameter]] = [[] for _ in range(dist.get_world_size())]
        self._links: list[tuple[int, int]] = []
        sample = self._new_inner([{"params": [torch.zeros(1, 1).requires_grad_()]}])
        self._waiting: list[tuple[int, dict[str, Any]]] | None = []
        super().__init__(params, dict(sample.defaults))
        waiting, self._waiting = self._waiting, None
        self._admit(waiting)

    @property
    def state(self) -> Any:
        """This rank's share: that of the optimizer inside, if there is one."""
        return self._own_state if self._inner is None else self._inner.state

    @state.setter
    def state(self, value: Any) -> None:
        if self._inner is None:
            self._own_state = value
        else:
            self._inner.state = value

    def __setstate__(self, state: dict[str, Any]) -> None:
        # What `load_state_dict` ends with. It writes into __dict__, past the property.
        state = dict(state)
        loaded = state.pop("state", None)
        super().__setstate__(state)
        if loaded is not None:
            self.state = loaded

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        own: list[Tensor] = []
        for p in added["params"]:
            loads = [sum(q.numel() for q in share) for share in self._owned_by]
            owner = loads.index(min(loads))
            self._owned_by[owner].append(p)
            if owner == dist.get_rank():
                own.append(p)
        if own:
            group = {k: v for k, v in added.items() if k != "param_names"}
            group["params"] = own
            entry = (len(self.param_groups) - 1, group)
            if self._waiting is None:
                self._admit([entry])
            else:
                self._waiting.append(entry)

    def _admit(self, entries: list[tuple[int, dict[str, Any]]]) -> None:
        """Hand groups to the inner optimizer, which begins to exist with the first ones."""
        if not entries:
            return
        fresh = self._new_inner([group for _, group in entries])
        if self._inner is None:
            self._inner = fresh
        else:
            for group in fresh.param_groups:
                self._inner.add_param_group(group)
            self._inner.state.update(fresh.state)
        for outer, _ in entries:
            self._links.append((outer, len(self._links)))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for outer_index, inner_index in self._links:
            outer, inner = self.param_groups[outer_index], self._inner.param_groups[inner_index]
            inner.update((k, v) for k, v in outer.items() if k in inner and k != "params")
        if self._inner is not None:
            self._inner.step()
        self._spread()
        return loss

    @torch.no_grad()
    def _spread(self) -> None:
        sent = []
        for owner, share in enumerate(self._owned_by):
            kinds: dict[Any, list[nn.Parameter]] = {}
            for p in share:
                kinds.setdefault((p.dtype, p.device), []).append(p)
            for members in kinds.values():
                flat = torch.cat([p.reshape(-1) for p in members])
                sent.append((members, flat, dist.broadcast(flat, owner, async_op=True)))
        for members, flat, handle in sent:
            handle.wait()
            for p, values in zip(members, flat.split([p.numel() for p in members]), strict=True):
                p.copy_(values.view(p.shape))


@torch.no_grad()
def evaluate(
    model: nn.Module, dataset: Dataset, loss_fn: LossFunction, batch_size: int
) -> dict[str, Any]:
    """Each rank evaluates its contiguous part; one all-reduce of three sums at the end."""
    share = shard_without_padding(len(dataset), dist.get_world_size(), dist.get_rank())
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    modes = [(module, module.training) for module in model.modules()]
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    model.eval()
    try:
        for inputs, targets in DataLoader(Subset(dataset, share), batch_size=batch_size):
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            sums[0] += loss_fn(outputs, targets).double() * len(targets)
            sums[1] += (outputs.argmax(dim=1) == targets).sum()
            sums[2] += len(targets)
    finally:
        for module, mode in modes:
            module.training = mode
    dist.all_reduce(sums)
    loss, correct, samples = sums.tolist()
    return {"loss": loss / max(samples, 1), "accuracy": correct / max(samples, 1), "samples": int(samples)}


_SECONDS_FOR_A_SIGN = 23
_trainings = itertools.count()


class _Clock:
    """When this rank last did something that no other rank takes part in."""

    def __init__(self) -> None:
        self.worked()

    def worked(self) -> None:
        self.last = time.time()


@contextmanager
def _naming_the_lost(rank: int, world: int) -> Iterator[_Clock]:
    """Turn an error of the communication into one that names the rank at fault."""
    clock = _Clock()
    namespace = f"training/{next(_trainings)}/"
    try:
        yield clock
    except RuntimeError as error:
        message = str(error)
        typical = ("gloo", "onnection", "imed out", "pair closure", "store")
        if world == 1 or not any(part in message for part in typical):
            raise
        inquiry = _Inquiry(rank, world, namespace, clock, "imed out" in message or "timeout" in message)
        # In a thread, since the store does not answer if its host is asleep.
        inquiry.start()
        inquiry.join(_SECONDS_FOR_A_SIGN + 15)
        culprits = inquiry.culprits if not inquiry.is_alive() else [0]
        inquiry.release()
        if not culprits:
            raise
        raise RuntimeError(
            "training stopped: lost " + ", ".join(f"rank {culprit}" for culprit in culprits)
        ) from error


class _Inquiry(threading.Thread):
    """Who is it? Asks the connections first, and then the store for signs of life."""

    def __init__(self, rank: int, world: int, namespace: str, clock: _Clock, timed_out: bool) -> None:
        super().__init__(daemon=True)
        self.rank, self.world = rank, world
        self.clock, self.timed_out = clock, timed_out
        self.store = dist.PrefixStore(namespace, dist.distributed_c10d._get_default_store())
        self.culprits: list[int] = []
        self.receives: list[Any] = []
        self.signed: set[int] = set()

    def release(self) -> None:
        """Hang up on those who still wait for us, by a receive that is too late."""
        for receive, _ in self.receives:
            with suppress(RuntimeError):
                receive.wait(timedelta(milliseconds=10))

    def run(self) -> None:
        silent = self._disconnected()
        try:
            self._ask(silent)
        except Exception:
            # The store went with its host, which is where rank 0 is.
            if 0 in self.signed:
                self.culprits = [other for other in silent if other not in self.signed]
            else:
                self.culprits = [0]

    def _disconnected(self) -> list[int]:
        silent = []
        for other in range(self.world):
            if other != self.rank:
                buffer = torch.empty(1, dtype=torch.uint8)
                try:
                    self.receives.append((dist.irecv(buffer, other, tag=99_991), buffer))
                except RuntimeError:
                    silent.append(other)
        return silent

    def _note(self, key: str, text: str) -> None:
        self.store.set(key, text)

    def _read(self, key: str) -> str | None:
        return self.store.get(key).decode() if self.store.check([key]) else None

    def _ask(self, silent: list[int]) -> None:
        # Did somebody run out of patience while we were still at work? Then it is us.
        for other in range(self.world):
            gave_up = self._read(f"gave-up/{other}")
            if gave_up is not None and float(gave_up) < self.clock.last:
                self._note(f"late/{self.rank}", "yes")
                self.culprits = [self.rank]
                return
        if self.timed_out:
            self._note(f"gave-up/{self.rank}", repr(time.time()))
        self._note(f"alive/{self.rank}", "yes")
        end = time.monotonic() + _SECONDS_FOR_A_SIGN
        while not self.culprits:
            verdict = self._read("verdict")
            if verdict is not None:
                self.culprits = [int(number) for number in verdict.split()]
                break
            self.signed |= {other for other in range(self.world) if self._read(f"alive/{other}")}
            late = [other for other in range(self.world) if self._read(f"late/{other}")]
            missing = [other for other in silent if other not in self.signed]
            if late:
                self.culprits = late
            elif time.monotonic() > end:
                if missing or time.monotonic() > end + 6:
                    self.culprits = missing
                    break
            time.sleep(0.2)
        if self.culprits:
            self._note("verdict", " ".join(map(str, self.culprits)))
            self._note(f"goodbye/{self.rank}", "yes")
            self.release()
            if self.rank == 0:  # keep the store up for those who read it now
                end = time.monotonic() + 8
                stay = [q for q in range(1, self.world) if q not in self.culprits]
                while time.monotonic() < end and not all(self._read(f"goodbye/{q}") for q in stay):
                    time.sleep(0.1)


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
    with _naming_the_lost(rank, world) as guard:
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


def main() -> None:
    """Train the small CNN on MNIST: `torchrun --nproc_per_node 2 phase2/template_trainer.py`."""
    # Imported while there is no group: its defaults keep the one that they find, for good. Else an
    # optimizer imports it later, the group's threads outlive the group's end, and one that frees a
    # tensor while Python ends aborts the process.
    import torch.distributed.nn.functional  # noqa: F401

    from gradsync.data import digits
    from gradsync.model import SmallCNN

    dist.init_process_group("gloo")
    info = RankInfo(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        local_rank=int(os.environ["LOCAL_RANK"]),
        master_addr=os.environ["MASTER_ADDR"],
        master_port=int(os.environ["MASTER_PORT"]),
    )
    data = digits()
    known = data.train.first(10_000)
    path = "small_cnn.pt"
    train(info, SmallCNN(), known, data.test, epochs=5, batch_size=50, lr=0.1, resume_from=path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
