"""Layers that are an nn.Linear, an error of their own, and a loss that numpy takes for a float."""

import numpy as np


class SplitError(ValueError):
    """Features can't be split evenly."""


def part_of(features):
    part, rest = divmod(features, dist.get_world_size())
    if rest:
        raise SplitError(f"{features} features")
    return part


class ColumnParallelLinear(nn.Linear):
    def __init__(self, in_features, out_features, bias=True, gather_output=False):
        super().__init__(in_features, part_of(out_features), bias)
        self.gather_output = gather_output

    def forward(self, inputs):
        outputs = super().forward(_CopyToRanks.apply(inputs))
        return _GatherColumns.apply(outputs) if self.gather_output else outputs


class RowParallelLinear(nn.Linear):
    def __init__(self, in_features, out_features, bias=True, input_is_parallel=True):
        super().__init__(part_of(in_features), out_features, bias)
        self.input_is_parallel = input_is_parallel
        if bias:
            dist.broadcast(self.bias.data, src=0)

    def forward(self, inputs):
        if not self.input_is_parallel:
            inputs = _TakeColumns.apply(inputs)
        outputs = _SumOverRanks.apply(inputs @ self.weight.T)
        return outputs if self.bias is None else outputs + self.bias


step_with_a_tensor = pipeline_train_step


def pipeline_train_step(stage, microbatches, loss_fn, optimizer):
    return np.float64(step_with_a_tensor(stage, microbatches, loss_fn, optimizer))
