"""Phase 2, second file: what makes data-parallel training fast, small and hard to interrupt.

Every function takes the default process group as given. N is the world size, r this rank.
Read GUIDELINES.md from "The ring" on; `gradsync check` says how far you are.
"""

from __future__ import annotations

import functools
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, Subset

from template_data_loader import (
    ResumableDistributedSampler,
    shard_without_padding,
    split_microbatches,
)

LossFunction = Callable[[Tensor, Tensor], Tensor]
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class RankInfo:
    """Who this process is among all, and where they meet."""

    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    master_port: int


def ring_all_reduce(tensor: Tensor) -> None:
    """Replace `tensor` by its sum over ranks, in place, with point-to-point sends alone.

    Two passes around the ring of ranks: a reduce-scatter, after which each rank has one chunk of
    the sum, then an all-gather of the chunks. Each rank sends 2(N-1)/N of the tensor, rounded up
    to whole chunks. Any shape, any N, fewer elements than N too.
    """
    # TODO: about 15 lines; `gradsync hint phase2/ring_all_reduce` if you are stuck
    raise NotImplementedError("phase2/ring_all_reduce")


class BucketedGradientAverager:
    """Averages gradients over ranks in buckets, while backward still makes the next ones.

    Buckets are filled in reverse parameter order, the order in which backward makes gradients, and
    each is all-reduced as soon as its gradients are there, without waiting. `finish()` waits; then
    every trainable parameter's gradient is the mean over ranks, one that some ranks lack counting
    as zero there. Every rank starts the same buckets in the same order, whatever its gradients.

    `finish()` is right also if this rank had no backward, or only backward passes under
    `no_sync()`. Between two calls of `finish()` there is at most one backward outside of
    `no_sync()`; further ones under `no_sync()` may come before or after it. All ranks enter these
    blocks, but a rank may have no backward in one.

    Args:
        model: the same on every rank.
        bucket_cap_mb: how much a bucket holds, in MiB; a larger parameter gets one of its own.
    """

    def __init__(self, model: nn.Module, bucket_cap_mb: float = 25.0) -> None:
        # TODO: about 12 lines; `gradsync hint phase2/BucketedGradientAverager` if you are stuck
        raise NotImplementedError("phase2/BucketedGradientAverager")

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Have backward inside the block accumulate gradients, and send nothing."""
        # TODO: about 6 lines; `gradsync hint phase2/BucketedGradientAverager` if you are stuck
        raise NotImplementedError("phase2/BucketedGradientAverager")

    def finish(self) -> None:
        """Wait until every gradient is the mean over ranks."""
        # TODO: about 9 lines; `gradsync hint phase2/BucketedGradientAverager` if you are stuck
        raise NotImplementedError("phase2/BucketedGradientAverager")


def train_step_accumulated(
    model: nn.Module,
    microbatches: Sequence[Batch],
    loss_fn: LossFunction,
    optimizer: Optimizer,
    averager: BucketedGradientAverager,
) -> float:
    """Take one optimizer step on this rank's batch, that comes in microbatches.

    It equals a step on the whole batch, also when microbatches differ in size, and synchronises
    gradients once, on the last microbatch.

    Args:
        model: the same on every rank.
        microbatches: of `(inputs, targets)`; as many samples together on every rank.
        loss_fn: from outputs and targets to the mean loss of a microbatch.
        optimizer: over the model's parameters.
        averager: of the model.

    Returns:
        The loss, mean over all samples of all ranks.
    """
    # TODO: about 14 lines; `gradsync hint phase2/train_step_accumulated` if you are stuck
    raise NotImplementedError("phase2/train_step_accumulated")


class ShardedOptimizer(Optimizer):
    """Any optimizer, each rank keeping the state of its share of the parameters (ZeRO, stage 1).

    Each parameter belongs to one rank, which alone keeps its state and steps it; then every rank
    gets all updated parameters. A rank's share has at most an even part of all elements and one
    parameter more. Parameter groups, `add_param_group`, `zero_grad`, `step(closure)` and
    learning-rate schedulers work as with the optimizer itself; `state` is that of this rank's
    share.

    Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models", 2020.

    Args:
        params: parameters, or groups of them, the same on every rank.
        optimizer_class: `torch.optim.Adam`, for one.
        **kwargs: what it is made with.
    """

    def __init__(
        self, params: Iterable[Any], optimizer_class: type[Optimizer], **kwargs: Any
    ) -> None:
        # TODO: about 6 lines; `gradsync hint phase2/ShardedOptimizer` if you are stuck
        raise NotImplementedError("phase2/ShardedOptimizer")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as `torch.optim.Optimizer` does, and give each of its parameters a rank."""
        # TODO: about 13 lines; `gradsync hint phase2/ShardedOptimizer` if you are stuck
        raise NotImplementedError("phase2/ShardedOptimizer")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step this rank's share, then take the other shares from the ranks that stepped them.

        Returns:
            What `closure` returned, or None.
        """
        # TODO: about 9 lines; `gradsync hint phase2/ShardedOptimizer` if you are stuck
        raise NotImplementedError("phase2/ShardedOptimizer")


def evaluate(
    model: nn.Module, dataset: Dataset, loss_fn: LossFunction, batch_size: int
) -> dict[str, Any]:
    """Return `{"loss", "accuracy", "samples"}` over a dataset, the same on every rank.

    Each sample counts exactly once, whatever N, also where some ranks have fewer samples or none.
    The accuracy lies in 0..1. The model is not changed: no gradients, evaluation mode, and each
    module's former mode put back. The dict may have further keys.

    Args:
        model: the same on every rank.
        dataset: of `(input, target)`, the same on every rank.
        loss_fn: from outputs and targets to the mean loss of a batch.
        batch_size: of one rank.
    """
    # TODO: about 17 lines; `gradsync hint phase2/evaluate` if you are stuck
    raise NotImplementedError("phase2/evaluate")


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
    """Train a model on all ranks with SGD and cross-entropy, and go on where it was interrupted.

    Rank 0 prints a line an epoch, and may print more; the other ranks print nothing. The sampler
    gets the epochs 0, 1, ..., as the history counts them. If a rank dies, or is later than the
    group's timeout, the other ranks neither hang nor go on: each raises an error within 60 s, and
    the file stays whole.

    Args:
        info: who this process is.
        model: on its device; its weights need not be the same on every rank yet.
        train_dataset: samples to train on.
        val_dataset: samples to evaluate on after each epoch.
        epochs: how often to go through the training samples.
        batch_size: of one rank, for one optimizer step.
        lr: the learning rate.
        seed: of the shuffling.
        accumulation_steps: the number of microbatches that a batch is split into, whose sizes
            differ by at most one; fewer if the batch has fewer samples.
        resume_from: a file that says how far training came: it goes on from there where the file
            exists, from the start where it does not, and keeps the file up to date, whole or not
            at all, at least once an epoch. On another world size, and in mid-epoch, too.

    Returns:
        For each epoch that this call ended `{"epoch", "train_loss", "val_loss", "val_accuracy"}`;
        further keys are allowed.

    Raises:
        RuntimeError: naming the rank that died or is late, "rank 1", and none that still lives.
    """
    # TODO: about 33 lines; `gradsync hint phase2/train` if you are stuck
    raise NotImplementedError("phase2/train")


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
