"""Phase 3, second file: training in which no rank holds a whole model.

Every function uses the default process group, which already exists. N is the world size, r is this
rank. Read GUIDELINES.md from "The mean over tokens" on. `gradsync check` shows your progress.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from template_data_loader import TokenLoader, document_mask, pack_documents


@dataclass(frozen=True)
class RankInfo:
    """The rank of this process, the world size, and the address at which the ranks connect."""

    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    master_port: int


def token_weighted_loss(logits: Tensor, targets: Tensor, ignore_index: int = -100) -> Tensor:
    """Return this rank's share of the mean cross-entropy over all tokens of all ranks.

    If its gradients are averaged over the ranks, they are the gradients of the mean over all tokens
    of all ranks that are not ignored, even if some ranks have more of them than others. A rank
    without such tokens contributes zeros. Without any on any rank, the loss is 0, and so are its
    gradients. The ranks exchange a single number.

    Args:
        logits: scores of shape (..., vocabulary).
        targets: int64 tokens of shape (...).
        ignore_index: the target of the tokens that do not count.

    Returns:
        A scalar; its mean over the ranks is the mean loss over all tokens.
    """
    # TODO: about 7 lines; `gradsync hint phase3/token_weighted_loss` if you are stuck
    raise NotImplementedError("phase3/token_weighted_loss")


class FullyShardedModule(nn.Module):
    """Wraps a module; each rank keeps 1/N of its parameters, gradients and optimizer state.

    This is stage 3 of ZeRO. All ranks begin with the values of rank 0. A parameter with two or more
    dimensions is sharded: each rank keeps at most `ceil(numel / N)` of its elements, in the
    parameter's dtype. Just before the submodule that owns it computes, in forward and again in
    backward, the parameter is gathered from all ranks, in `compute_dtype` if that is given, and
    right afterwards it is freed. As soon as its gradient is ready, it is reduce-scattered to the
    mean over ranks, in the parameter's own dtype. Parameters with fewer dimensions, such as biases
    and norms, are replicated in their own dtype, and their gradients are averaged.

    `parameters()` are what an optimizer steps. After `finish()`, each trainable one has a gradient
    of its own shape and dtype. Tied, frozen and unused parameters, several forwards before a
    backward, `torch.no_grad()` and evaluation work as in the wrapped module. All ranks must run the
    same submodules in the same order.

    Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models", 2020.

    Args:
        module: the module to shard, on every rank; it is changed, and used as `.module`.
        compute_dtype: the dtype in which sharded parameters are sent and computed. None: their own.
    """

    def __init__(self, module: nn.Module, *, compute_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        # TODO: about 12 lines; `gradsync hint phase3/FullyShardedModule` if you are stuck
        raise NotImplementedError("phase3/FullyShardedModule")

    def forward(self, *args: Any, **options: Any) -> Any:
        """Call the wrapped module."""
        # TODO: about 1 line; `gradsync hint phase3/FullyShardedModule` if you are stuck
        raise NotImplementedError("phase3/FullyShardedModule")

    def finish(self) -> None:
        """Wait until every gradient is the mean over all ranks."""
        # TODO: about 6 lines; `gradsync hint phase3/FullyShardedModule` if you are stuck
        raise NotImplementedError("phase3/FullyShardedModule")

    def full_state_dict(self) -> dict[str, Tensor]:
        """Return the whole parameters and the buffers, under the wrapped module's names.

        Every rank must call this, and every rank gets all of them, in the parameters' dtype.
        """
        # TODO: about 3 lines; `gradsync hint phase3/FullyShardedModule` if you are stuck
        raise NotImplementedError("phase3/FullyShardedModule")


def clip_grad_norm_(model: FullyShardedModule, max_norm: float) -> float:
    """Scale all gradients so that their norm is at most `max_norm`.

    The norm is the 2-norm of all gradients, as if nothing were sharded: a replicated parameter
    counts once. It is the same on every rank. If it is infinite or NaN, the gradients are not
    changed.

    Returns:
        The norm before scaling.
    """
    # TODO: about 15 lines; `gradsync hint phase3/clip_grad_norm_` if you are stuck
    raise NotImplementedError("phase3/clip_grad_norm_")


class LossScaler:
    """Scales the loss so that small gradients do not become zero in half precision.

    The scale is halved after a step that was skipped, and doubled after `growth_interval` steps
    without a skip. It is the same on every rank.

    Source: Micikevicius et al., "Mixed Precision Training", 2018.

    Args:
        init_scale: the scale at the beginning.
        growth_interval: the number of steps in a row after which the scale is doubled.
    """

    def __init__(self, init_scale: float = 2.0**16, growth_interval: int = 2000) -> None:
        # TODO: about 3 lines; `gradsync hint phase3/LossScaler` if you are stuck
        raise NotImplementedError("phase3/LossScaler")

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale, for `backward`."""
        # TODO: about 1 line; `gradsync hint phase3/LossScaler` if you are stuck
        raise NotImplementedError("phase3/LossScaler")

    def step(self, optimizer: Optimizer, model: nn.Module) -> bool:
        """Divide the gradients by the scale and step the optimizer, or skip the step.

        All ranks skip the step if any rank has a gradient with an infinite or NaN element.

        Returns:
            Whether the optimizer stepped.
        """
        # TODO: about 14 lines; `gradsync hint phase3/LossScaler` if you are stuck
        raise NotImplementedError("phase3/LossScaler")

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, and the number of steps since it changed."""
        # TODO: about 1 line; `gradsync hint phase3/LossScaler` if you are stuck
        raise NotImplementedError("phase3/LossScaler")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the scale and the number of steps of `state_dict`."""
        # TODO: about 1 line; `gradsync hint phase3/LossScaler` if you are stuck
        raise NotImplementedError("phase3/LossScaler")


def save_sharded(
    folder: str | Path, model: FullyShardedModule, optimizer: Optimizer, step: int
) -> None:
    """Save a checkpoint to which each rank writes its own shards.

    It replaces the previous checkpoint in the folder, completely or not at all: if any rank fails
    at any moment, the previous one can still be loaded. When this returns, the new one can be
    loaded on every rank. The folder is created if necessary.
    """
    # TODO: about 17 lines; `gradsync hint phase3/save_sharded` if you are stuck
    raise NotImplementedError("phase3/save_sharded")


def load_sharded(folder: str | Path, model: FullyShardedModule, optimizer: Optimizer) -> int:
    """Load the latest complete checkpoint, which another number of ranks may have saved.

    Every rank must call this. Afterwards the full parameters, buffers and the optimizer's state
    equal the saved ones, bit for bit. No code from a file is run.

    Returns:
        The step that was saved.

    Raises:
        FileNotFoundError, ValueError: if there is no complete checkpoint, on every rank. The
            message names the file.
    """
    # TODO: about 25 lines; `gradsync hint phase3/load_sharded` if you are stuck
    raise NotImplementedError("phase3/load_sharded")


def train(
    info: RankInfo,
    model: nn.Module,
    sequences: Tensor,
    *,
    steps: int,
    batch_size: int,
    lr: float,
    seed: int = 0,
    compute_dtype: torch.dtype | None = None,
    max_norm: float = 1.0,
    resume_from: str | Path | None = None,
) -> list[dict[str, Any]]:
    """Train a language model with AdamW, sharded over all ranks.

    Rank 0 prints; the other ranks print nothing. In float32, the losses equal those of one process
    that trains on the global batches.

    Args:
        info: this process's rank and the world size.
        model: a module from tokens (batch, L) to logits (batch, L, vocabulary); it is sharded.
        sequences: int64 tokens of shape (sequences, L + 1), the same on every rank.
        steps: the number of optimizer steps, including those of the run that is resumed.
        batch_size: the number of sequences of one rank in a step.
        lr: the learning rate.
        seed: the seed of the sequences' order.
        compute_dtype: as in `FullyShardedModule`. With float16, the loss is scaled.
        max_norm: the largest norm of the gradients of a step.
        resume_from: the folder of checkpoints. If it has one, training continues from it, even with
            a different world size. A checkpoint is saved there at least at the end.

    Returns:
        A list with `{"step", "loss", "grad_norm", "tokens_per_second"}` for each step of this call.
        The loss is the mean over all tokens of all ranks, the norm that before clipping, without
        the scale of the loss, and the steps count from 0.
    """
    # TODO: about 48 lines; `gradsync hint phase3/train` if you are stuck
    raise NotImplementedError("phase3/train")


def main() -> None:
    """Train on Python's own modules: `torchrun --nproc_per_node 2 phase3/template_trainer.py`."""
    # As in phase 2: an optimizer must not import this module after the process group exists.
    import torch.distributed.nn.functional
    from model import EOS, Transformer, standard_library

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    info = RankInfo(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        local_rank=int(os.environ["LOCAL_RANK"]),
        master_addr=os.environ["MASTER_ADDR"],
        master_port=int(os.environ["MASTER_PORT"]),
    )
    torch.manual_seed(0)
    model = Transformer(mask=lambda tokens: document_mask(tokens, EOS))
    sequences = pack_documents(standard_library(), 128, EOS)
    train(info, model, sequences, steps=200, batch_size=8, lr=1e-3, resume_from="transformer")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
