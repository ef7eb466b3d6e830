"""Ring attention and the 1F1B pipeline of phase 3, compared with torch's own."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradsync import run_ranks
from support.rules.pipelines import order_of_1f1b

SOLUTIONS = str(Path(__file__).parents[3] / "solutions" / "phase3")


def ours():
    """Import the solution's file, on a rank."""
    sys.path.insert(0, SOLUTIONS)
    return importlib.import_module("template_model_parallel")


def in_a_ring(rank, world_size, whole, upstream, causal):
    given = [t.chunk(world_size, 2)[rank].clone().requires_grad_() for t in whole]
    output = ours().ring_attention(*given, causal=causal)
    output.backward(upstream.chunk(world_size, 2)[rank])
    return [output.detach(), *(tensor.grad for tensor in given)]


@pytest.mark.parametrize("causal", [True, False])
def test_ring_attention_equals_scaled_dot_product_attention(causal):
    torch.manual_seed(0)
    *whole, upstream = (torch.randn(2, 3, 12, 8) for _ in range(4))

    seen = run_ranks(in_a_ring, 3, whole=whole, upstream=upstream, causal=causal)

    leaves = [tensor.clone().requires_grad_() for tensor in whole]
    output = F.scaled_dot_product_attention(*leaves, is_causal=causal)
    output.backward(upstream)
    expected = [output.detach(), *(leaf.grad for leaf in leaves)]
    for number, tensor in enumerate(expected):
        parts = torch.cat([value[number] for value in seen], 2)
        torch.testing.assert_close(parts, tensor, rtol=0, atol=1e-5)


class Noting(nn.Linear):
    """A stage that notes its passes."""

    def __init__(self):
        super().__init__(4, 4)
        self.order = []

    def forward(self, x):
        outputs = super().forward(x)
        self.order.append("forward")
        if outputs.requires_grad:
            outputs.register_hook(lambda _: self.order.append("backward"))
        return outputs


def orders(rank, world_size, microbatches):
    """Return the order of the passes of our pipeline, of torch's 1F1B, and of its ZB1P.

    ZB1P computes the gradients of weights later, which are left out here.
    """
    from torch.distributed.pipelining import (
        PipelineStage,
        Schedule1F1B,
        ScheduleInterleavedZeroBubble,
    )

    inputs, targets = torch.ones(microbatches, 4), torch.zeros(microbatches, 4)
    own, other = Noting(), Noting()
    parts = list(zip(inputs.split(1), targets.split(1), strict=True))
    ours().pipeline_1f1b(own, parts, F.mse_loss, torch.optim.SGD(own.parameters(), lr=0.1))
    stage = PipelineStage(other, rank, world_size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, microbatches, loss_fn=F.mse_loss)
    last = {"target": targets} if rank == world_size - 1 else {}
    for _ in range(2):  # before the first step, torch runs forward to learn the shapes
        other.order.clear()
        schedule.step(*[inputs] * (rank == 0), **last)
    zero_bubble = ScheduleInterleavedZeroBubble([stage], microbatches, loss_fn=F.mse_loss)
    passes = {"FORWARD": "forward", "BACKWARD_INPUT": "backward", "FULL_BACKWARD": "backward"}
    actions = (each.computation_type.name for each in zero_bubble.pipeline_order[rank] if each)
    return own.order, other.order, [passes[action] for action in actions if action in passes]


def test_the_order_of_passes_is_that_of_torchs_schedules():
    for rank, (own, *others) in enumerate(run_ranks(orders, 3, microbatches=5)):
        assert [own, *others] == [order_of_1f1b(rank, 3, 5)] * 3
