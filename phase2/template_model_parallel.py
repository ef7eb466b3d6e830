"""Phase 2, third file: split one model over N ranks, within its layers or between them.

Every function uses the default process group, which already exists. N is the world size, r is this
rank. Read GUIDELINES.md, "Tensor parallelism" and "Pipelines". `gradsync check` shows your
progress.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

LossFunction = Callable[[Tensor, Tensor], Tensor]


class ColumnParallelLinear(nn.Module):
    """A linear layer whose outputs are split over the ranks: each rank has rows of the weight.

    The input (..., in_features) is the same on every rank. The output (..., out_features/N) is this
    rank's part, or with `gather_output` all of it, (..., out_features), on every rank. Forward and
    backward give the same results as `nn.Linear`; in particular, every rank gets the complete
    gradient of the input. The ranks exchange activations and their gradients, but no weights. A new
    layer has random weights, as in `nn.Linear`.

    Attributes:
        weight: (out_features/N, in_features), this rank's rows.
        bias: (out_features/N,), or None.

    Raises:
        ValueError: if `out_features` is not divisible by N.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, gather_output: bool = False
    ) -> None:
        super().__init__()
        # TODO: about 5 lines; `gradsync hint phase2/ColumnParallelLinear` if you are stuck
        raise NotImplementedError("phase2/ColumnParallelLinear")

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs (..., in_features) to outputs (..., out_features/N), or to all outputs."""
        # TODO: about 2 lines; `gradsync hint phase2/ColumnParallelLinear` if you are stuck
        raise NotImplementedError("phase2/ColumnParallelLinear")


class RowParallelLinear(nn.Module):
    """A linear layer whose inputs are split over the ranks: each rank has columns of the weight.

    The input (..., in_features/N) is this rank's part. With `input_is_parallel=False` it is the
    full input (..., in_features), and the layer takes this rank's part. The output
    (..., out_features) is the same on every rank, and the bias is added once. Forward and backward
    give the same results as `nn.Linear`. The ranks exchange activations and their gradients, but no
    weights. A new layer has random weights, as in `nn.Linear`, and the same bias on every rank.

    Attributes:
        weight: (out_features, in_features/N), this rank's columns.
        bias: (out_features,), the same on every rank, or None.

    Raises:
        ValueError: if `in_features` is not divisible by N.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        input_is_parallel: bool = True,
    ) -> None:
        super().__init__()
        # TODO: about 6 lines; `gradsync hint phase2/RowParallelLinear` if you are stuck
        raise NotImplementedError("phase2/RowParallelLinear")

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs (..., in_features/N), or all inputs, to outputs (..., out_features)."""
        # TODO: about 3 lines; `gradsync hint phase2/RowParallelLinear` if you are stuck
        raise NotImplementedError("phase2/RowParallelLinear")


def load_full_linear(
    layer: ColumnParallelLinear | RowParallelLinear, weight: Tensor, bias: Tensor | None
) -> None:
    """Copy this rank's part of a full layer into `layer`; its parameters stay the same objects.

    Args:
        layer: a column-parallel or row-parallel layer.
        weight: the full weight (out_features, in_features), as in `nn.Linear`.
        bias: the full bias (out_features,), or None if the layer has none.
    """
    # TODO: about 5 lines; `gradsync hint phase2/load_full_linear` if you are stuck
    raise NotImplementedError("phase2/load_full_linear")


def pipeline_train_step(
    stage: nn.Module,
    microbatches: Sequence[tuple[Tensor | None, Tensor | None]],
    loss_fn: LossFunction,
    optimizer: Optimizer,
) -> float:
    """Take one optimizer step of a model whose stages are on consecutive ranks.

    This is GPipe: first forward for all microbatches, then backward for all. Rank 0 gets the
    inputs, each rank sends its stage's outputs to the next rank, and the last rank computes the
    loss from the targets. The gradients of the activations are sent back the same way. Nothing else
    of the batch is sent. Activations may have any shape and dtype, which the receiver learns from
    the sender. There may be any number of ranks, even one, and a stage may be frozen. The stages
    stay in the mode that they are in. After the step the parameters still have their gradients.
    These equal the unsplit model's gradients on the whole batch, even if microbatches differ in
    size.

    Args:
        stage: this rank's part of the model.
        microbatches: `(inputs, targets)` for each microbatch, the same number on every rank. Only
            rank 0 reads the inputs and only the last rank reads the targets; on other ranks they
            may be None.
        loss_fn: a function that returns the mean loss of a microbatch, given outputs and targets.
        optimizer: the optimizer of this stage's parameters.

    Returns:
        The mean loss of the whole batch, on every rank.
    """
    # TODO: about 29 lines; `gradsync hint phase2/pipeline_train_step` if you are stuck
    raise NotImplementedError("phase2/pipeline_train_step")


def main() -> None:
    """Compare two parallel layers with unsplit ones; run this with torchrun on 2 ranks."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    first, second = nn.Linear(8, 16), nn.Linear(16, 4)
    inputs = torch.randn(5, 8)
    column, row = ColumnParallelLinear(8, 16), RowParallelLinear(16, 4)
    load_full_linear(column, first.weight, first.bias)
    load_full_linear(row, second.weight, second.bias)
    same = torch.allclose(row(torch.relu(column(inputs))), second(torch.relu(first(inputs))))
    if dist.get_rank() == 0:
        print(
            f"{dist.get_world_size()} ranks, equal to the unsplit layers: {'yes' if same else 'NO'}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
