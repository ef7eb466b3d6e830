"""Phase 2: ring, buckets, accumulation, sharding, evaluation, training."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from itertools import count as count_up

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
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


class _Ring:
    """This rank's place in the circle."""

    def __init__(self) -> None:
        self.size = dist.get_world_size()
        self.rank = dist.get_rank()
        self.after = (self.rank + 1) % self.size
        self.before = (self.rank - 1) % self.size

    def shift(self, outgoing: Tensor) -> Tensor:
        """Give a chunk to the rank after, and return the one from the rank before."""
        incoming = torch.empty_like(outgoing)
        pending = dist.irecv(incoming, src=self.before)
        dist.send(outgoing, dst=self.after)
        pending.wait()
        return incoming


def ring_all_reduce(tensor: Tensor) -> None:
    """Chunks wander around the ring twice; `irecv` is posted before the blocking `send`."""
    ring = _Ring()
    if ring.size == 1 or tensor.numel() == 0:
        return
    with torch.no_grad():
        values = tensor.reshape(-1)
        missing = -values.numel() % ring.size
        own = list(F.pad(values, (0, missing)).chunk(ring.size))
        moving = own[ring.rank].clone()
        for step in range(1, ring.size):
            moving = ring.shift(moving)
            moving += own[(ring.rank - step) % ring.size]
        # `moving` is now the whole sum of the chunk after this rank's number.
        place = (ring.rank + 1) % ring.size
        total: list[Tensor] = [moving] * ring.size
        for step in range(1, ring.size):
            moving = ring.shift(moving)
            total[(place - step) % ring.size] = moving
        tensor.copy_(torch.cat(total)[: values.numel()].reshape(tensor.shape))


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


class ShardedOptimizer(Optimizer):
    """Greedy owners (the least loaded rank takes the next parameter), one broadcast per parameter."""

    def __init__(
        self, params: Iterable[Any], optimizer_class: type[Optimizer], **kwargs: Any
    ) -> None:
        self._class, self._kwargs = optimizer_class, kwargs
        self._owner: dict[Tensor, int] = {}
        self._load = [0] * dist.get_world_size()
        # Optimizers that do the work, each with the numbers of the outer groups it has parts of.
        self._workers: list[tuple[Optimizer, list[int]]] = []
        self._complete = False
        # The defaults of the class: schedulers look into them, and groups are filled up from them.
        defaults = optimizer_class([torch.zeros(1, 1, requires_grad=True)], **kwargs).defaults
        super().__init__(params, dict(defaults))
        self._complete = True
        self._employ(range(len(self.param_groups)))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group, number = self.param_groups[-1], len(self.param_groups) - 1
        for p in group["params"]:
            owner = min(range(len(self._load)), key=self._load.__getitem__)
            self._owner[p] = owner
            self._load[owner] += p.numel()
        if self._complete:  # a group that comes later
            self._employ([number])

    def _employ(self, numbers: Iterable[int]) -> None:
        """Make an inner optimizer for what this rank owns of these groups, if it owns anything."""
        groups, kept = [], []
        for number in numbers:
            group = self.param_groups[number]
            mine = [p for p in group["params"] if self._owner[p] == dist.get_rank()]
            if mine:
                groups.append({**self._settings(group), "params": mine})
                kept.append(number)
        if groups:
            worker = self._class(groups, **self._kwargs)
            self.state.update(worker.state)
            self._workers.append((worker, kept))

    @staticmethod
    def _settings(group: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in group.items() if key not in ("params", "param_names")}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        for worker, numbers in self._workers:
            worker.state = self.state
            for inner_group, number in zip(worker.param_groups, numbers, strict=True):
                inner_group.update(self._settings(self.param_groups[number]))
            worker.step()
        handles = []
        for p, owner in self._owner.items():
            packed = p.detach().contiguous()
            handles.append((p, packed, dist.broadcast(packed, src=owner, async_op=True)))
        for p, packed, handle in handles:
            handle.wait()
            if packed.data_ptr() != p.data_ptr():
                p.copy_(packed)
        return result


class _Frozen:
    """`with _Frozen(model)`: evaluation mode inside, and what it was before outside."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __enter__(self) -> nn.Module:
        self.modes = [m.training for m in self.model.modules()]
        return self.model.eval()

    def __exit__(self, *error: object) -> None:
        for m, mode in zip(self.model.modules(), self.modes, strict=True):
            m.training = mode


@torch.no_grad()
def evaluate(
    model: nn.Module, dataset: Dataset, loss_fn: LossFunction, batch_size: int
) -> dict[str, Any]:
    """Per-sample bookkeeping of this rank's share, then sums over ranks with the ring."""
    device = next(model.parameters()).device
    share = shard_without_padding(len(dataset), dist.get_world_size(), dist.get_rank())
    losses, hits = [], []
    with _Frozen(model) as frozen:
        for inputs, targets in DataLoader(Subset(dataset, share), batch_size=batch_size):
            outputs = frozen(inputs.to(device))
            targets = targets.to(device)
            losses.append(loss_fn(outputs, targets).double().expand(len(targets)))
            hits.append(outputs.argmax(dim=1) == targets)
    nothing = torch.zeros(0, dtype=torch.float64, device=device)
    sums = torch.stack([
        torch.cat([nothing, *losses]).sum(),
        torch.cat([nothing, *(hit.double() for hit in hits)]).sum(),
        torch.tensor(float(len(share)), dtype=torch.float64, device=device),
    ])
    ring_all_reduce(sums)
    loss, correct, samples = sums.tolist()
    return {"loss": loss / (samples or 1), "accuracy": correct / (samples or 1), "samples": int(samples)}


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


def _pack(model: nn.Module, words: dict[str, Any]) -> dict[str, np.ndarray]:
    """Weights as bytes (numpy has no bfloat16), and the rest as JSON in an array of bytes."""
    arrays = {}
    kinds = {}
    for name, tensor in model.state_dict().items():
        tensor = tensor.detach().cpu().contiguous()
        kinds[name] = [str(tensor.dtype).split(".")[1], list(tensor.shape)]
        arrays["w:" + name] = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.zeros(0, np.uint8)
    arrays["words"] = np.frombuffer(json.dumps({**words, "kinds": kinds}).encode(), dtype=np.uint8)
    return arrays


def _unpack(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with np.load(path, allow_pickle=False) as archive:
        words = json.loads(archive["words"].tobytes())
        state = {}
        for name, (kind, shape) in words["kinds"].items():
            raw = torch.from_numpy(archive["w:" + name].copy())
            state[name] = raw.view(getattr(torch, kind)).reshape(shape)
    return state, words


def _write_archive(path: Path, arrays: dict[str, np.ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(path.suffix + ".new")
    with draft.open("wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _align(tensors: Iterable[Tensor]) -> None:
    """Begin all broadcasts from rank 0, then wait for all."""
    begun = []
    for tensor in tensors:
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        begun.append((tensor, copy, dist.broadcast(copy, 0, async_op=True)))
    for tensor, copy, handle in begun:
        handle.wait()
        tensor.detach().copy_(copy)


def _reseed(seed: int, rank: int, epoch: int, seen: int) -> None:
    sequence = np.random.SeedSequence([seed % 2**32, rank, epoch, seen])
    torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))


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
    """An .npz of bytes and JSON, written after each epoch and at its half; no pickle anywhere.

    Every step has random numbers of its own: they follow from where training is.
    """
    file = Path(resume_from) if resume_from else None
    everybody = info.world_size
    with _LifeSigns(info.rank, everybody) as guard:
        start: list[Any] = [None]
        if info.rank == 0 and file and file.exists():
            state, start[0] = _unpack(file)
            model.load_state_dict(state)
        dist.broadcast_object_list(start)
        _align([*model.parameters(), *model.buffers()])
        now = start[0] or {"epoch": 0, "seen": 0, "sum": 0.0, "samples": 0}
        now.pop("kinds", None)

        def save() -> None:
            if info.rank == 0 and file:
                _write_archive(file, _pack(model, now))
                guard.worked()

        def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
            guard.worked()
            return nn.functional.cross_entropy(outputs, targets)

        if start[0] is None:
            save()
        size_of_epoch = len(train_dataset)
        sampler = ResumableDistributedSampler(train_dataset, everybody, info.rank, seed=seed)
        sampler.resume(now["epoch"], now["seen"])
        loader = DataLoader(train_dataset, batch_size, sampler=sampler)
        sgd = torch.optim.SGD(model.parameters(), lr)
        averager = BucketedGradientAverager(model)
        history: list[dict[str, Any]] = []
        for epoch in count_up(now["epoch"]):
            if epoch >= epochs:
                break
            sampler.set_epoch(epoch)
            model.train()
            half_done = now["seen"] * 2 >= size_of_epoch
            length, fetch = len(loader), iter(loader)
            for _ in range(length):
                _reseed(seed, info.rank, epoch, now["seen"])
                batch = next(fetch)
                rows = len(batch[1])
                parts = split_microbatches(batch, min(rows, max(accumulation_steps, 1)))
                now["sum"] += train_step_accumulated(model, parts, loss_fn, sgd, averager) * rows * everybody
                now["samples"] += rows * everybody
                now["seen"] = min(now["seen"] + rows * everybody, size_of_epoch)
                if not half_done and now["seen"] * 2 >= size_of_epoch:
                    half_done = True
                    save()
            _align(model.buffers())
            val = evaluate(model, val_dataset, loss_fn, batch_size)
            history.append(
                {"epoch": epoch, "train_loss": now["sum"] / max(1, now["samples"]),
                 "val_loss": val["loss"], "val_accuracy": val["accuracy"]}
            )
            now = {"epoch": epoch + 1, "seen": 0, "sum": 0.0, "samples": 0}
            save()
            if info.rank == 0:
                print(json.dumps(history[-1]), flush=True)
        dist.barrier()
    return history


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
