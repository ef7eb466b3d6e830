"""Phase 2, third file: one model on N ranks, layer by layer in parts, or stage after stage.

Every function takes the default process group as given. N is the world size, r this rank.
Read GUIDELINES.md, "Tensor parallelism" and "Pipelines"; `gradsync check` says how far you are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

LossFunction = Callable[[Tensor, Tensor], Tensor]


class ColumnParallelLinear(nn.Module):
    """A linear layer whose outputs are split over the ranks: each holds rows of the weight.

    Input (..., in_features), the same on every rank. Output (..., out_features/N), this rank's
    part, or with `gather_output` (..., out_features) on every rank. Forward and backward equal
    `nn.Linear`'s: the gradient of the input is whole on every rank. A new layer begins with random
    weights, as `nn.Linear` does.

    Attributes:
        weight: (out_features/N, in_features), this rank's rows.
        bias: (out_features/N,), or None.

    Raises:
        ValueError: if `out_features` does not divide by N.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, gather_output: bool = False
    ) -> None:
        super().__init__()
        # TODO: about 5 lines; `gradsync hint phase2/ColumnParallelLinear` if you are stuck
        raise NotImplementedError("phase2/ColumnParallelLinear")

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs (..., in_features) to outputs (..., out_features/N), or all of them."""
        # TODO: about 2 lines; `gradsync hint phase2/ColumnParallelLinear` if you are stuck
        raise NotImplementedError("phase2/ColumnParallelLinear")


class RowParallelLinear(nn.Module):
    """A linear layer whose inputs are split over the ranks: each holds columns of the weight.

    Input (..., in_features/N), this rank's part, or with `input_is_parallel=False` the whole
    (..., in_features), of which it takes its part. Output (..., out_features), the same on every
    rank, the bias added once. Forward and backward equal `nn.Linear`'s. A new layer begins with
    random weights, as `nn.Linear` does, and with the same bias on every rank.

    Attributes:
        weight: (out_features, in_features/N), this rank's columns.
        bias: (out_features,), the same on every rank, or None.

    Raises:
        ValueError: if `in_features` does not divide by N.
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
        """Map inputs (..., in_features/N), or all of them, to outputs (..., out_features)."""
        # TODO: about 3 lines; `gradsync hint phase2/RowParallelLinear` if you are stuck
        raise NotImplementedError("phase2/RowParallelLinear")


def load_full_linear(
    layer: ColumnParallelLinear | RowParallelLinear, weight: Tensor, bias: Tensor | None
) -> None:
    """Copy this rank's part of a full layer into `layer`; its parameters stay the same objects.

    Args:
        layer: either of the above.
        weight: (out_features, in_features), that of an `nn.Linear`.
        bias: (out_features,), or None where the layer has none.
    """
    # TODO: about 5 lines; `gradsync hint phase2/load_full_linear` if you are stuck
    raise NotImplementedError("phase2/load_full_linear")


def pipeline_train_step(
    stage: nn.Module,
    microbatches: Sequence[tuple[Tensor | None, Tensor | None]],
    loss_fn: LossFunction,
    optimizer: Optimizer,
) -> float:
    """Take one optimizer step of a model whose stages lie on the ranks, one after another.

    GPipe: all microbatches forward, then all backward. Rank 0 is fed the inputs, each rank sends
    its stage's outputs to the next, the last rank compares with the targets, and the gradients of
    the activations go the same way back. After the step the parameters still have their
    gradients: those of the whole model on the whole batch, microbatches of unequal size too.

    Args:
        stage: this rank's part of the model.
        microbatches: of `(inputs, targets)`, as many on every rank; only rank 0 reads the inputs
            and only the last rank the targets: elsewhere they may be None.
        loss_fn: from outputs and targets to the mean loss of a microbatch.
        optimizer: over this stage's parameters.

    Returns:
        The mean loss of the whole batch, on every rank.
    """
    # TODO: about 29 lines; `gradsync hint phase2/pipeline_train_step` if you are stuck
    raise NotImplementedError("phase2/pipeline_train_step")


def main() -> None:
    """Compare two parallel layers with the whole ones: run it with torchrun on 2 ranks."""
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
            f"{dist.get_world_size()} ranks, the whole model's outputs: {'yes' if same else 'NO'}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
