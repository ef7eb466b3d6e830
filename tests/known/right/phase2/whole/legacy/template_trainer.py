"""Phase 2: ring, buckets, accumulation, sharding, evaluation, training."""

from __future__ import annotations

import heapq
import io
import itertools
import json
import os
import random
import tempfile
import threading
import time
import weakref
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, default_collate

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
    """Blocking calls alone: even ranks speak first, odd ranks listen first.

    With an odd number of ranks the first and the last are both even. That is no circle of waiting
    ranks all the same, for some odd rank listens.
    """
    n, r = dist.get_world_size(), dist.get_rank()
    if n == 1:
        return
    count = tensor.numel()
    chunk = (count + n - 1) // n
    if chunk == 0:
        return
    padded = torch.zeros(n, chunk, dtype=tensor.dtype, device=tensor.device)
    padded.view(-1)[:count].copy_(tensor.detach().reshape(-1))
    inbox = torch.empty(chunk, dtype=tensor.dtype, device=tensor.device)

    def pass_on(row: int) -> None:
        if r % 2 == 0:
            dist.send(padded[row], dst=(r + 1) % n)
            dist.recv(inbox, src=(r + n - 1) % n)
        else:
            dist.recv(inbox, src=(r + n - 1) % n)
            dist.send(padded[row], dst=(r + 1) % n)

    # Reduce-scatter: what I pass on is what I added last.
    row = r
    for _ in range(n - 1):
        pass_on(row)
        row = (row - 1) % n
        padded[row] += inbox
    # All-gather: begins with the whole chunk, the one added last.
    for _ in range(n - 1):
        pass_on(row)
        row = (row - 1) % n
        padded[row] = inbox
    with torch.no_grad():
        tensor.copy_(padded.view(-1)[:count].reshape(tensor.shape))


class BucketedGradientAverager:
    """Buckets filled by tensor hooks, which run just before a gradient is accumulated.

    Such a hook sees what this backward adds. The final gradient is that plus what `grad` already
    holds, and this sum goes into the parameter's slot of its bucket.
    """

    def __init__(self, model: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        self.cap = int(bucket_cap_mb * 1024 * 1024)
        self.params: list[nn.Parameter] = [p for p in model.parameters() if p.requires_grad][::-1]
        self.groups = self._fill()
        self.home = {i: g for g, members in enumerate(self.groups) for i in members}
        self.storage = [
            torch.zeros(sum(self.params[i].numel() for i in members), dtype=self.params[members[0]].dtype,
                        device=self.params[members[0]].device)
            for members in self.groups
        ]
        self.slots: dict[int, Tensor] = {}
        for members, buffer in zip(self.groups, self.storage, strict=True):
            offset = 0
            for i in members:
                p = self.params[i]
                self.slots[i] = buffer[offset : offset + p.numel()].view(p.shape)
                offset += p.numel()
        self.depth = 0
        self._restart()
        watcher = weakref.WeakMethod(self._before_accumulation)
        self._handles = [p.register_hook(self._make_hook(watcher, i)) for i, p in enumerate(self.params)]
        weakref.finalize(self, BucketedGradientAverager._unhook, self._handles)

    @staticmethod
    def _make_hook(watcher: weakref.WeakMethod, index: int) -> Callable[[Tensor], None]:
        def hook(grad: Tensor) -> None:
            method = watcher()
            if method is not None:
                method(index, grad)

        return hook

    @staticmethod
    def _unhook(handles: list[Any]) -> None:
        for handle in handles:
            handle.remove()

    def _fill(self) -> list[list[int]]:
        groups: list[list[int]] = []
        open_group: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        used: dict[int, int] = {}
        for i, p in enumerate(self.params):
            nbytes = p.numel() * p.element_size()
            group = open_group.get((p.dtype, p.device))
            if group is None or used[id(group)] + nbytes > self.cap:
                group = open_group[p.dtype, p.device] = []
                groups.append(group)
                used[id(group)] = 0
            group.append(i)
            used[id(group)] += nbytes
        return groups

    def _restart(self) -> None:
        self.missing = [set(members) for members in self.groups]
        self.futures: list[Any] = []
        self.changed = torch.zeros(len(self.groups), dtype=torch.int32)

    @torch.no_grad()
    def _before_accumulation(self, index: int, grad: Tensor | None) -> None:
        group = self.home[index]
        if group < len(self.futures):  # it has left without this
            self.changed[group] = 1
            return
        if self.depth:
            self.missing[group].add(index)  # whatever the slot holds is old now
            return
        slot, old = self.slots[index], self.params[index].grad
        if grad is None:
            slot.zero_()
        else:
            slot.copy_(grad)
        if old is not None:
            slot.add_(old)
        self.missing[group].discard(index)
        while len(self.futures) < len(self.groups) and not self.missing[len(self.futures)]:
            self._launch(len(self.futures))

    def _launch(self, group: int) -> None:
        work = dist.all_reduce(self.storage[group], op=dist.ReduceOp.AVG, async_op=True)
        self.futures.append(work.get_future())

    @torch.no_grad()
    def _collect(self, group: int, which: Iterable[int]) -> None:
        for i in which:
            grad = self.params[i].grad
            if grad is None:
                self.slots[i].zero_()
            else:
                self.slots[i].copy_(grad)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.depth = self.depth, self.depth + 1
        try:
            yield
        finally:
            self.depth = before

    @torch.no_grad()
    def finish(self) -> None:
        if not self.groups:
            return
        for group in range(len(self.futures), len(self.groups)):
            self._collect(group, self.missing[group])
            self._launch(group)
        # Which buckets were overtaken by a later backward, on any rank?
        changed = self.changed.to(self.storage[0].device)
        dist.all_reduce(changed, op=dist.ReduceOp.MAX)
        for future in self.futures:
            future.wait()
        again = []
        for group in changed.nonzero().flatten().tolist():
            self._collect(group, self.groups[group])
            again.append(dist.all_reduce(self.storage[group], op=dist.ReduceOp.AVG, async_op=True).get_future())
        for future in again:
            future.wait()
        for i, p in enumerate(self.params):
            if p.grad is None:
                p.grad = self.slots[i].clone()
            else:
                p.grad.copy_(self.slots[i])
        self._restart()


def train_step_accumulated(
    model: nn.Module,
    microbatches: Sequence[Batch],
    loss_fn: LossFunction,
    optimizer: Optimizer,
    averager: BucketedGradientAverager,
) -> float:
    """A running mean: what is there shrinks a little as each microbatch comes in.

    After k microbatches the gradients are those of the mean over their samples, so nobody has to
    know the number of samples in advance.
    """
    device = next(model.parameters()).device
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer.zero_grad()
    seen, mean_loss = 0, 0.0
    last = len(microbatches) - 1
    for i, (inputs, targets) in enumerate(microbatches):
        count = len(targets)
        keep = seen / (seen + count)
        with torch.no_grad():
            for p in trainable:
                if p.grad is not None:
                    p.grad.mul_(keep)
        outputs = model(inputs.to(device))
        loss = loss_fn(outputs, targets.to(device))
        if i == last:
            ((1 - keep) * loss).backward()
        else:
            with averager.no_sync():
                ((1 - keep) * loss).backward()
        mean_loss = keep * mean_loss + (1 - keep) * loss.item()
        seen += count
    averager.finish()
    optimizer.step()
    losses: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(losses, (mean_loss, seen))
    return sum(mean * count for mean, count in losses) / sum(count for _, count in losses)


class ShardedOptimizer(Optimizer):
    """Largest parameter to the least loaded rank, found with a heap; coalesced broadcasts.

    All ranks hold an inner optimizer, made anew whenever a group is added; the ranks without a
    parameter in any group have none. The state is one dictionary, outside and inside.
    """

    def __init__(
        self, params: Iterable[Any], optimizer_class: type[Optimizer], **kwargs: Any
    ) -> None:
        self._optimizer_class = optimizer_class
        self._optimizer_kwargs = kwargs
        self._heap = [(0, rank) for rank in range(dist.get_world_size())]
        self._parameters_of: dict[int, list[Tensor]] = {rank: [] for _, rank in self._heap}
        self._optimizer: Optimizer | None = None
        self._made = False
        self._source: list[dict[str, Any]] = []  # the outer group of each inner one
        tiny = optimizer_class([{"params": [torch.ones(1, 1, requires_grad=True)]}], **kwargs)
        super().__init__(params, {name: value for name, value in tiny.defaults.items()})
        self._made = True
        self._rebuild()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for p in sorted(self.param_groups[-1]["params"], key=torch.numel, reverse=True):
            load, rank = heapq.heappop(self._heap)
            self._parameters_of[rank].append(p)
            heapq.heappush(self._heap, (load + p.numel(), rank))
        if self._made:
            self._rebuild()

    def _rebuild(self) -> None:
        mine = set(self._parameters_of[dist.get_rank()])
        groups, self._source = [], []
        for outer in self.param_groups:
            own = [p for p in outer["params"] if p in mine]
            if own:
                inner = dict(outer, params=own)
                inner.pop("param_names", None)
                groups.append(inner)
                self._source.append(outer)
        if groups:
            kept = dict(self.state)
            self._optimizer = self._optimizer_class(groups, **self._optimizer_kwargs)
            self._optimizer.state.update(kept)
            self.state = self._optimizer.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._rebuild()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.enable_grad():
            loss = closure() if closure is not None else None
        if self._optimizer is not None:
            for outer, inner in zip(self._source, self._optimizer.param_groups, strict=True):
                for name, value in outer.items():
                    if name not in ("params", "param_names"):
                        inner[name] = value
            self._optimizer.step()
        for rank, parameters in self._parameters_of.items():
            by_dtype: dict[torch.dtype, list[Tensor]] = {}
            for p in parameters:
                by_dtype.setdefault(p.dtype, []).append(p)
            for members in by_dtype.values():
                values = [p.detach().contiguous() for p in members]
                dist._broadcast_coalesced(dist.group.WORLD, values, 2**20, rank)
                for p, value in zip(members, values, strict=True):
                    if value.data_ptr() != p.data_ptr():
                        p.copy_(value)
        return loss


def evaluate(
    model: nn.Module, dataset: Dataset, loss_fn: LossFunction, batch_size: int
) -> dict[str, Any]:
    """Batches by hand: a stride through this rank's range, without a loader."""
    rank, world = dist.get_rank(), dist.get_world_size()
    share = shard_without_padding(len(dataset), world, rank)
    device = next(model.parameters()).device
    before = [module.training for module in model.modules()]
    tally = torch.zeros(3, dtype=torch.float64)
    model.train(False)
    try:
        with torch.no_grad():
            for start in range(share.start, share.stop, batch_size):
                batch = default_collate([dataset[i] for i in share[start - share.start :][:batch_size]])
                inputs, targets = (part.to(device) for part in batch)
                outputs = model(inputs)
                hits = torch.eq(outputs.argmax(dim=1), targets).sum()
                size = targets.numel()
                tally += torch.tensor([float(loss_fn(outputs, targets)) * size, float(hits), size], dtype=torch.float64)
    finally:
        for module, mode in zip(model.modules(), before, strict=True):
            module.training = mode
    # Rank 0 adds up, and then tells everybody.
    tally = tally.to(device)
    dist.reduce(tally, dst=0)
    dist.broadcast(tally, src=0)
    loss, accuracy = (tally[:2] / tally[2].clamp(min=1)).tolist()
    return {"loss": loss, "accuracy": accuracy, "samples": round(tally[2].item())}


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


class _Run:
    """One call of `train`: everything it works with, and where it is."""

    def __init__(self, info: RankInfo, model: nn.Module, data: Dataset, batch_size: int, lr: float, seed: int, path: Path | None) -> None:
        self.info, self.model, self.path = info, model, path
        self.device = next(model.parameters()).device
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.total = len(data)
        self.sampler = ResumableDistributedSampler(data, info.world_size, info.rank, seed=seed)
        self.loader = DataLoader(data, batch_size, sampler=self.sampler, generator=torch.Generator())
        self.epoch, self.seen = 0, 0
        self.loss_sum, self.loss_samples = 0.0, 0

    # -- the file: a zip with progress.json and tensors.pt

    def load(self) -> None:
        """Rank 0 reads; all others are told."""
        progress: list[Any] = [None]
        random: Tensor | None = None
        if self.info.rank == 0 and self.path is not None and self.path.exists():
            with zipfile.ZipFile(self.path) as archive:
                progress[0] = json.loads(archive.read("progress.json"))
                tensors = torch.load(io.BytesIO(archive.read("tensors.pt")), map_location="cpu", weights_only=True)
            self.model.load_state_dict(tensors["model"])
            random = tensors["random"]
        dist.broadcast_object_list(progress, src=0)
        self.align(self.model.parameters())
        self.align(self.model.buffers())
        if progress[0] is None:
            self.save()
            return
        for name in ("epoch", "seen", "loss_sum", "loss_samples"):
            setattr(self, name, progress[0][name])
        if progress[0]["world_size"] == self.info.world_size:
            own = torch.get_rng_state()
            dist.scatter(own, None if random is None else list(random.unbind(0)), src=0)
            torch.set_rng_state(own)

    def save(self) -> None:
        if self.path is None:
            return
        self.align(self.model.buffers())
        own = torch.get_rng_state()
        gathered = [torch.empty_like(own) for _ in range(self.info.world_size)] if self.info.rank == 0 else None
        dist.gather(own, gathered, dst=0)
        if gathered is None:
            return
        tensors = io.BytesIO()
        torch.save({"model": self.model.state_dict(), "random": torch.stack(gathered)}, tensors)
        progress = {
            "epoch": self.epoch, "seen": self.seen, "loss_sum": self.loss_sum,
            "loss_samples": self.loss_samples, "world_size": self.info.world_size,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=self.path.name, delete=False) as file:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("progress.json", json.dumps(progress))
                archive.writestr("tensors.pt", tensors.getvalue())
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, self.path)

    @staticmethod
    def align(tensors: Iterable[Tensor]) -> None:
        with torch.no_grad():
            for tensor in tensors:
                row = tensor.flatten() if tensor.dim() != 1 else tensor.clone()
                row = row.clone()
                dist.broadcast(row, 0)
                tensor.copy_(row.view(tensor.shape))

    # -- training

    def batches(self) -> Iterator[list[Tensor]]:
        self.sampler.set_epoch(self.epoch)
        for batch in self.loader:
            yield [tensor.to(self.device) for tensor in batch]

    def account(self, loss: float, samples: int) -> None:
        samples *= self.info.world_size
        self.loss_sum += loss * samples
        self.loss_samples += samples
        self.seen = min(self.total, self.seen + samples)

    def turn_page(self) -> None:
        self.epoch += 1
        self.seen, self.loss_sum, self.loss_samples = 0, 0.0, 0


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
    with _Heartbeat(info.rank, info.world_size) as guard:

        def objective(outputs: Tensor, targets: Tensor) -> Tensor:
            guard.worked()
            return nn.functional.cross_entropy(outputs, targets)

        run = _Run(info, model, train_dataset, batch_size, lr, seed, Path(resume_from) if resume_from is not None else None)
        run.load()
        run.sampler.resume(run.epoch, run.seen)
        averager = BucketedGradientAverager(model)
        history: list[dict[str, Any]] = []
        while run.epoch < epochs:
            model.train()
            for number, batch in enumerate(run.batches()):
                samples = len(batch[0])
                microbatches = split_microbatches(batch, min(accumulation_steps, samples))
                run.account(train_step_accumulated(model, microbatches, objective, run.optimizer, averager), samples)
                if number % 10 == 9:
                    run.save()
                    guard.worked()
            run.align(model.buffers())
            validation = evaluate(model, val_dataset, objective, batch_size)
            history.append({
                "epoch": run.epoch,
                "train_loss": run.loss_sum / run.loss_samples if run.loss_samples else 0.0,
                "val_loss": validation["loss"],
                "val_accuracy": validation["accuracy"],
            })
            run.turn_page()
            run.save()
            if info.rank == 0:
                print("epoch {epoch:3d}  train {train_loss:.4f}  val {val_loss:.4f}  accuracy {val_accuracy:.3f}".format(**history[-1]), flush=True)
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
