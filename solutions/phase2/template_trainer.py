"""Phase 2, second file: data-parallel training that is fast, saves memory and can be resumed.

Every function uses the default process group, which already exists. N is the world size, r is this
rank. Read GUIDELINES.md from "The ring" on. `gradsync check` shows your progress.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from template_data_loader import (
    ResumableDistributedSampler,
    shard_without_padding,
    split_microbatches,
)

### BEGIN SOLUTION
# isort: split
import functools
import weakref
from contextlib import nullcontext

from torch.utils.data import Subset

### END SOLUTION
LossFunction = Callable[[Tensor, Tensor], Tensor]
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class RankInfo:
    """The rank of this process, the world size, and the address at which the ranks connect."""

    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    master_port: int


def ring_all_reduce(tensor: Tensor) -> None:
    """Replace `tensor` by its sum over all ranks, in place, using only point-to-point messages.

    Data goes around the ring of ranks twice. First comes a reduce-scatter, after which each rank
    has one chunk of the sum, then an all-gather of the chunks. Each rank sends 2(N-1)/N of the
    tensor, rounded up to whole chunks. The tensor may have any shape, even fewer elements than N,
    and N may be any number of ranks. The sum is computed in the tensor's own dtype. When the
    function returns, every send and receive is complete.
    """
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        return
    flat = tensor.detach().contiguous().view(-1)  # the tensor's memory, or a contiguous copy
    chunks = flat.tensor_split(world_size)  # views, the larger ones first
    buffer = torch.empty_like(chunks[0])

    for step in range(world_size - 1):
        chunk = chunks[(rank - step - 1) % world_size]
        arriving = buffer[: len(chunk)]
        _pass_on(chunks[(rank - step) % world_size], arriving)
        chunk += arriving
    for step in range(world_size - 1):
        _pass_on(chunks[(rank - step + 1) % world_size], chunks[(rank - step) % world_size])
    if not tensor.is_contiguous():
        tensor.detach().copy_(flat.view_as(tensor))
    ### END SOLUTION


### BEGIN SOLUTION
def _pass_on(leaving: Tensor, arriving: Tensor) -> None:
    """Send to the next rank of the ring, and receive from the previous one at the same time."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sending = dist.isend(leaving, (rank + 1) % world_size)
    dist.recv(arriving, (rank - 1) % world_size)
    sending.wait()


class _Bucket:
    """Parameters whose gradients are sent together, in one flat tensor that every step reuses."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        self.params = params
        self.missing = set(params)  # parameters whose gradients backward has not computed yet
        self.work: dist.Work | None = None  # the all-reduce in progress
        sizes = [param.numel() for param in params]
        self._flat = params[0].new_empty(sum(sizes))
        parts = zip(params, self._flat.split(sizes), strict=True)
        self._parts = {param: part.view_as(param) for param, part in parts}

    def launch(self) -> None:
        """Fill the bucket with gradients divided by N (0 for None), and start the sum."""
        for param, part in self._parts.items():
            if param.grad is None:
                part.zero_()
            else:  # in one pass over memory, not in two
                torch.div(param.grad, dist.get_world_size(), out=part)
            param.grad = None  # its memory is free for the next gradient
        self.work = dist.all_reduce(self._flat, async_op=True)

    def finish(self) -> None:
        """Wait for the sum, and use views of it as gradients, so that nothing is copied back."""
        assert self.work is not None
        self.work.wait()
        self.work = None
        self.missing = set(self.params)
        for param, mean in self._parts.items():
            param.grad = mean if param.grad is None else mean + param.grad  # a later backward


### END SOLUTION


class BucketedGradientAverager:
    """Averages gradients over ranks in buckets, while backward computes the next gradients.

    Buckets are filled in reverse parameter order, which is usually the order in which backward
    computes the gradients. Each bucket is all-reduced asynchronously as soon as its gradients are
    ready. `finish()` waits for all buckets; then each trainable parameter's gradient is the mean
    over all ranks, in its own dtype. If a rank has no gradient for a parameter, it counts as zero
    there; if no rank has one, it may stay None. Every rank starts the same buckets in the same
    order, even if their gradients differ. A weight that several layers share is averaged once.
    Frozen parameters are left alone.

    `finish()` also works on a rank that had no backward, or only backward passes under `no_sync()`.
    Between two calls of `finish()` there is at most one backward outside of `no_sync()`; more
    passes under `no_sync()` may come before or after it. If one rank enters a block of `no_sync()`
    after that backward, every rank does.

    Args:
        model: the model, the same on every rank.
        bucket_cap_mb: the maximum size of a bucket in MiB; a larger parameter gets its own bucket.
            A bucket is filled until the next parameter would exceed this size.
    """

    def __init__(self, model: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        ### BEGIN SOLUTION
        params = [p for p in reversed(list(model.parameters())) if p.requires_grad]
        self._buckets = [_Bucket(group) for group in _grouped(params, bucket_cap_mb * 2**20)]
        self._launched = 0  # number of buckets of this backward that have been sent
        self._syncs = True
        self._sent = False  # there was a backward that sends since the last `finish`
        self._stale = False  # there may have been another one after it, on some rank
        self._bucket_of = {p: bucket for bucket in self._buckets for p in bucket.params}
        # Hooks that refer to this averager would keep it alive as long as the model.
        ready = functools.partial(type(self)._ready, weakref.proxy(self))
        for param in params:
            hook = param.register_post_accumulate_grad_hook(ready)
            weakref.finalize(self, hook.remove)
        ### END SOLUTION

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Make backward inside the block only accumulate gradients, without sending them."""
        ### BEGIN SOLUTION
        before, self._syncs = self._syncs, False
        self._stale = self._stale or self._sent  # even if this rank computes no gradient here
        try:
            yield
        finally:
            self._syncs = before
        ### END SOLUTION

    def finish(self) -> None:
        """Wait until every gradient is the mean over all ranks."""
        ### BEGIN SOLUTION
        for bucket in self._buckets[self._launched :]:
            bucket.launch()
        if self._stale:  # add later gradients to the mean that was sent, and average again
            for bucket in self._buckets:
                bucket.finish()
                bucket.launch()
        for bucket in self._buckets:
            bucket.finish()
        self._launched, self._sent, self._stale = 0, False, False
        ### END SOLUTION

    ### BEGIN SOLUTION
    def _ready(self, param: nn.Parameter) -> None:
        """Record that a parameter's gradient is ready, and start the buckets that are now full."""
        if not self._syncs:
            return
        self._sent = True
        bucket = self._bucket_of[param]
        if param not in bucket.missing:
            self._stale = True
        bucket.missing.discard(param)
        while self._launched < len(self._buckets) and not self._buckets[self._launched].missing:
            self._buckets[self._launched].launch()
            self._launched += 1

    ### END SOLUTION


### BEGIN SOLUTION
EARLY = 2**20  # the first bucket is full at this many bytes, so that it is sent early


def _grouped(params: Iterable[nn.Parameter], cap: float) -> list[list[nn.Parameter]]:
    """Group parameters in order, each group of one dtype and device and of at most `cap` bytes."""
    groups: list[list[nn.Parameter]] = []
    for param in params:
        last = groups[-1] if groups else []
        alike = bool(last) and (last[0].dtype, last[0].device) == (param.dtype, param.device)
        enough = len(groups) == 1 and sum(p.nbytes for p in last) >= EARLY
        if alike and not enough and sum(p.nbytes for p in last) + param.nbytes <= cap:
            last.append(param)
        else:
            groups.append([param])
    return groups


### END SOLUTION


def train_step_accumulated(
    model: nn.Module,
    microbatches: Sequence[Batch],
    loss_fn: LossFunction,
    optimizer: Optimizer,
    averager: BucketedGradientAverager,
) -> float:
    """Take one optimizer step on this rank's batch, which is split into microbatches.

    The step equals a step on the whole batch, even if microbatches differ in size. The microbatches
    are run one after another, in the mode that the model is in. The step synchronises the gradients
    once, during the backward of the last microbatch, which alone is outside of `no_sync()`.

    Args:
        model: the model, the same on every rank.
        microbatches: `(inputs, targets)` for each microbatch; the total number of samples is the
            same on every rank.
        loss_fn: a function that returns the mean loss of a microbatch, given outputs and targets.
        optimizer: the optimizer of the model's parameters.
        averager: the averager of the model's gradients.

    Returns:
        The mean loss over all samples of all ranks.
    """
    ### BEGIN SOLUTION
    device = next(model.parameters()).device
    samples = sum(len(targets) for _, targets in microbatches)
    total = torch.zeros((), dtype=torch.float64, device=device)
    optimizer.zero_grad()
    for number, microbatch in enumerate(microbatches, 1):
        inputs, targets = (part.to(device) for part in microbatch)
        with nullcontext() if number == len(microbatches) else averager.no_sync():
            loss = loss_fn(model(inputs), targets) * (len(targets) / samples)
            loss.backward()
        total += loss.detach()
    averager.finish()
    optimizer.step()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()
    ### END SOLUTION


class ShardedOptimizer(Optimizer):
    """Wraps any optimizer; each rank keeps the state of only its share of the parameters.

    This is stage 1 of ZeRO. Each parameter belongs to one rank, and only this rank keeps its
    optimizer state and updates it. Then every rank receives all updated parameters. A rank's share
    has at most 1/N of all elements, rounded up, plus one parameter. Parameter groups,
    `add_param_group`, `zero_grad`, `step(closure)` and learning-rate schedulers work as with an
    unsharded optimizer. `state` contains the state of this rank's share.

    Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models", 2020.

    Args:
        params: parameters, or parameter groups, the same on every rank.
        optimizer_class: the class of the optimizer, for example `torch.optim.Adam`.
        **kwargs: the arguments of that class, for example `lr`.
    """

    def __init__(
        self, params: Iterable[Any], optimizer_class: type[Optimizer], **kwargs: Any
    ) -> None:
        ### BEGIN SOLUTION
        self._make = optimizer_class
        self._local: Optimizer | None = None  # for this rank's share
        self._shares: list[list[nn.Parameter]] = [[] for _ in range(dist.get_world_size())]
        super().__init__(params, kwargs)
        self.state = self._local.state
        self.defaults = self._local.defaults  # with all its settings: some schedulers read them
        ### END SOLUTION

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as `torch.optim.Optimizer` does, and assign each parameter to a rank."""
        ### BEGIN SOLUTION
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        before = len(self._shares[dist.get_rank()])
        for param in group["params"]:
            min(self._shares, key=_elements).append(param)
        options = {k: v for k, v in group.items() if k not in ("params", "param_names")}
        mine = {**options, "params": self._shares[dist.get_rank()][before:]}
        if self._local is None:
            self._local = self._make([mine], **self.defaults)
        else:
            self._local.add_param_group(mine)
        for name, value in self._local.param_groups[-1].items():
            group.setdefault(name, value)
        ### END SOLUTION

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update this rank's share, then receive the other shares from the ranks that own them.

        Returns:
            The return value of `closure`, or None without a closure.
        """
        ### BEGIN SOLUTION
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, mine in zip(self.param_groups, self._local.param_groups, strict=True):
            mine.update({k: v for k, v in group.items() if k not in ("params", "param_names")})
        self._local.step()
        _exchange(self._shares)
        return loss
        ### END SOLUTION


### BEGIN SOLUTION
def _elements(params: list[nn.Parameter]) -> int:
    return sum(param.numel() for param in params)


@torch.no_grad()
def _exchange(shares: list[list[nn.Parameter]]) -> None:
    """Broadcast each share from its owner, the rank of that index, in one message per dtype."""
    arrivals = []
    for owner, share in enumerate(shares):
        for dtype in dict.fromkeys(param.dtype for param in share):
            params = [param for param in share if param.dtype == dtype]
            flat = torch.cat([param.reshape(-1) for param in params])
            arrivals.append((params, flat, dist.broadcast(flat, src=owner, async_op=True)))
    for params, flat, work in arrivals:
        work.wait()
        parts = flat.split([param.numel() for param in params])
        for param, part in zip(params, parts, strict=True):
            param.copy_(part.view_as(param))


### END SOLUTION


def evaluate(
    model: nn.Module, dataset: Dataset, loss_fn: LossFunction, batch_size: int
) -> dict[str, Any]:
    """Return `{"loss", "accuracy", "samples"}` over a dataset, the same on every rank.

    Each sample counts exactly once for any N, even if some ranks have fewer samples or none. The
    accuracy is between 0 and 1. The dict may have more keys. The model is evaluated in evaluation
    mode and without gradients, and its previous mode is restored.

    Args:
        model: the model, the same on every rank.
        dataset: a dataset of `(input, target)`, the same on every rank.
        loss_fn: a function that returns the mean loss of a batch, given outputs and targets.
        batch_size: the number of samples in a batch of one rank.
    """
    ### BEGIN SOLUTION
    device = next(model.parameters()).device
    sums = torch.zeros(3, dtype=torch.float64, device=device)  # (loss, correct, samples)
    mine = shard_without_padding(len(dataset), dist.get_world_size(), dist.get_rank())
    modes = {module: module.training for module in model.modules()}
    model.eval()
    with torch.no_grad():
        for batch in DataLoader(Subset(dataset, mine), batch_size=batch_size):
            inputs, targets = (part.to(device) for part in batch)
            outputs = model(inputs)
            correct = (outputs.argmax(dim=1) == targets).sum().item()
            loss = loss_fn(outputs, targets).item() * len(targets)
            sums += torch.tensor([loss, correct, len(targets)], dtype=sums.dtype, device=device)
    for module, mode in modes.items():
        module.training = mode
    dist.all_reduce(sums)
    loss, correct, samples = sums.tolist()
    return {"loss": loss / samples, "accuracy": correct / samples, "samples": int(samples)}
    ### END SOLUTION


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
    """Train a model on all ranks with SGD and cross-entropy; resume an interrupted run.

    Training starts from rank 0's weights and buffers, and equals that of one process with the
    samples of all ranks. Rank 0 prints one line for each epoch, and may print more; the other ranks
    print nothing. The sampler gets the epochs 0, 1, ..., as in the history. SGD may have momentum.

    A resumed run ends with the weights of a run that was never interrupted. If a rank dies, or is
    late by more than the group's timeout, the other ranks neither hang nor continue: each ends with
    an exception within 60 s, and the file stays complete.

    Args:
        info: this process's rank and the world size.
        model: the model, already on its device; its weights may still differ between ranks.
        train_dataset: the samples to train on.
        val_dataset: the samples to evaluate on after each epoch.
        epochs: the number of passes over the training samples.
        batch_size: the number of samples of one rank in one optimizer step.
        lr: the learning rate.
        seed: the seed of the shuffling.
        accumulation_steps: the number of microbatches that a batch is split into. Their sizes
            differ by at most one. A batch with fewer samples gives fewer microbatches.
        resume_from: the file in which training records its progress, with all that later steps
            depend on. If it exists, training continues from it, even in mid-epoch and with a
            different world size. Otherwise, training starts from the beginning. The file is updated
            at least once an epoch, completely or not at all. Only rank 0 writes it. Reading it runs
            no code from it.

    Returns:
        A list with `{"epoch", "train_loss", "val_loss", "val_accuracy"}` for each epoch that this
        call completed. The validation results are those after the epoch's training. An entry may
        have more keys.
    """
    ### BEGIN SOLUTION
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    progress = _Progress(resume_from, model, optimizer)
    progress.load()
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
    sampler = ResumableDistributedSampler(train_dataset, info.world_size, info.rank, seed=seed)
    loader = DataLoader(train_dataset, batch_size=batch_size, sampler=sampler)
    averager = BucketedGradientAverager(model)
    loss_fn = nn.CrossEntropyLoss()

    history = []
    for epoch in range(progress.epoch, epochs):
        sampler.resume(epoch, progress.samples_seen)
        model.train()
        for batch in loader:
            parts = split_microbatches(batch, min(accumulation_steps, len(batch[1])))
            loss = train_step_accumulated(model, parts, loss_fn, optimizer, averager)
            progress.step(loss, len(batch[1]) * info.world_size)
        train_loss = progress.end_epoch()
        val = evaluate(model, val_dataset, loss_fn, batch_size)
        history.append(
            {
                "epoch": epoch,
                "train_loss": train_loss,
                "val_loss": val["loss"],
                "val_accuracy": val["accuracy"],
            }
        )
        if info.rank == 0:
            print(
                f"epoch {epoch}: train loss {train_loss:.4f}, val loss {val['loss']:.4f}, "
                f"val accuracy {val['accuracy']:.2%}"
            )
    return history
    ### END SOLUTION


### BEGIN SOLUTION
class _Progress:
    """The progress of training, in a file that rank 0 writes and every rank reads."""

    STEPS = 20  # optimizer steps between two updates of the file

    def __init__(self, path: str | Path | None, model: nn.Module, optimizer: Optimizer) -> None:
        self._path = None if path is None else Path(path)
        self._model, self._optimizer = model, optimizer
        self._steps = 0
        self.epoch = 0
        self.samples_seen = 0  # in this epoch, by all ranks together
        self._loss = 0.0  # the sum over these samples

    def load(self) -> None:
        """Load the file, if it exists."""
        if self._path is None or not self._path.exists():
            return
        device = next(self._model.parameters()).device
        state = torch.load(self._path, map_location=device, weights_only=True)
        self._model.load_state_dict(state["model"])
        settings = self._optimizer.state_dict()  # this call's, such as the learning rate
        self._optimizer.load_state_dict({**settings, "state": state["optimizer"]})
        self.epoch, self.samples_seen = state["epoch"], state["samples_seen"]
        self._loss = state["loss"]

    def step(self, loss: float, samples: int) -> None:
        """Record an optimizer step, with the mean loss of its samples."""
        self._loss += float(loss) * samples
        self.samples_seen += samples
        self._steps += 1
        if self._steps % self.STEPS == 0:
            self._save()

    def end_epoch(self) -> float:
        """Record the end of the epoch, and return its mean loss."""
        mean = self._loss / self.samples_seen
        self.epoch, self.samples_seen, self._loss = self.epoch + 1, 0, 0.0
        self._save()
        return mean

    def _save(self) -> None:
        """Write the file on rank 0, completely or not at all."""
        if self._path is None or dist.get_rank() != 0:
            return
        beside = self._path.with_name(f"{self._path.name}.part")
        state = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict()["state"],
            "epoch": self.epoch,
            "samples_seen": self.samples_seen,
            "loss": self._loss,
        }
        try:
            torch.save(state, beside)
            beside.replace(self._path)
        finally:
            beside.unlink(missing_ok=True)


### END SOLUTION


def main() -> None:
    """Train the small CNN on MNIST: `torchrun --nproc_per_node 2 phase2/template_trainer.py`."""
    # Import this module before the process group exists, because its default arguments keep a
    # reference to the current group. Otherwise an optimizer imports it later, and the group's
    # threads still run when Python exits. If such a thread then frees a tensor, the process aborts.
    import torch.distributed.nn.functional  # noqa: F401

    from gradsync.data import digits
    from gradsync.model import SmallCNN

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
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
