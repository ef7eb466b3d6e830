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
    # TODO: about 15 lines; `gradsync hint phase2/ring_all_reduce` if you are stuck
    raise NotImplementedError("phase2/ring_all_reduce")


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
        # TODO: about 12 lines; `gradsync hint phase2/BucketedGradientAverager` if you are stuck
        raise NotImplementedError("phase2/BucketedGradientAverager")

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Make backward inside the block only accumulate gradients, without sending them."""
        # TODO: about 6 lines; `gradsync hint phase2/BucketedGradientAverager` if you are stuck
        raise NotImplementedError("phase2/BucketedGradientAverager")

    def finish(self) -> None:
        """Wait until every gradient is the mean over all ranks."""
        # TODO: about 9 lines; `gradsync hint phase2/BucketedGradientAverager` if you are stuck
        raise NotImplementedError("phase2/BucketedGradientAverager")


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
    # TODO: about 14 lines; `gradsync hint phase2/train_step_accumulated` if you are stuck
    raise NotImplementedError("phase2/train_step_accumulated")


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
        # TODO: about 6 lines; `gradsync hint phase2/ShardedOptimizer` if you are stuck
        raise NotImplementedError("phase2/ShardedOptimizer")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as `torch.optim.Optimizer` does, and assign each parameter to a rank."""
        # TODO: about 13 lines; `gradsync hint phase2/ShardedOptimizer` if you are stuck
        raise NotImplementedError("phase2/ShardedOptimizer")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update this rank's share, then receive the other shares from the ranks that own them.

        Returns:
            The return value of `closure`, or None without a closure.
        """
        # TODO: about 9 lines; `gradsync hint phase2/ShardedOptimizer` if you are stuck
        raise NotImplementedError("phase2/ShardedOptimizer")


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
    # TODO: about 33 lines; `gradsync hint phase2/train` if you are stuck
    raise NotImplementedError("phase2/train")


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
