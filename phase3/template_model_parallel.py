"""Phase 3, third file: split a sequence, experts and a pipeline's time over N ranks.

Every function uses the default process group, which already exists. N is the world size, r is this
rank. Read GUIDELINES.md from "Groups" to "Pipelines". `gradsync check` shows your progress.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

LossFunction = Callable[[Tensor, Tensor], Tensor]


def make_groups(data: int, tensor: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Arrange the ranks in `data` rows of `tensor` ranks, and return this rank's two groups.

    Rank r is in row `r // tensor` and column `r % tensor`. The ranks of a row split a model: they
    are a tensor group. The ranks of a column have the same part of the model and different data:
    they are a data group. Every rank creates all groups, in the same order.

    Returns:
        `(data_group, tensor_group)`, to be passed to collectives as `group`.

    Raises:
        ValueError: if `data * tensor` is not N.
    """
    # TODO: about 8 lines; `gradsync hint phase3/make_groups` if you are stuck
    raise NotImplementedError("phase3/make_groups")


def ring_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = True) -> Tensor:
    """Return this rank's rows of attention over a sequence of which each rank has a chunk.

    The result equals `softmax(Q K^T / sqrt(dim)) V` over the whole sequence, forward and backward.
    Rank r has the r-th of N contiguous chunks. If `causal`, a position sees itself and earlier
    positions of the whole sequence. Keys and values go round a ring: each rank sends to one
    neighbour what it has received from the other, N - 1 times in the forward. Besides its own
    chunk of keys and values, a rank never has more than two others: one that it computes with, and
    one that arrives. Large scores do not overflow.

    Source: Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context",
    2023.

    Args:
        q: this rank's queries (batch, heads, sequence / N, dim).
        k: its keys, of the same shape.
        v: its values, of the same shape.
        causal: whether later positions are hidden.

    Returns:
        A tensor of the shape of `q`.
    """
    # TODO: about 1 line; `gradsync hint phase3/ring_attention` if you are stuck
    raise NotImplementedError("phase3/ring_attention")


class ExpertParallelMLP(nn.Module):
    """A layer of E experts, of which each rank has E/N; each token is computed by one of them.

    The router gives each token a probability for each expert, by softmax. The token goes to the
    rank that has the expert of the largest probability, and the result comes back, both by
    all-to-all. The output is the expert's result times this probability, in the order of the
    tokens. Rank r has the experts from `r * E / N` up to, but not including, `(r + 1) * E / N`. An
    expert is `nn.Sequential(nn.Linear(d_model, d_hidden), nn.GELU(), nn.Linear(d_hidden,
    d_model))`. The router is `nn.Linear(d_model, E, bias=False)`, on every rank.

    Forward equals the same layer on one rank. So does backward, if the router's gradients are
    averaged over the ranks, and those of experts divided by N. An expert may get no token, a rank
    may have none, and the ranks may have different numbers of them.

    Source: Fedus et al., "Switch Transformers: Scaling to Trillion Parameter Models with Simple and
    Efficient Sparsity", 2021.

    Args:
        d_model: the size of a token's vector.
        d_hidden: the size of an expert's hidden layer.
        num_experts: E, the number of experts on all ranks together.

    Raises:
        ValueError: if `num_experts` is not divisible by N.
    """

    def __init__(self, d_model: int, d_hidden: int, num_experts: int) -> None:
        super().__init__()
        # TODO: about 11 lines; `gradsync hint phase3/ExpertParallelMLP` if you are stuck
        raise NotImplementedError("phase3/ExpertParallelMLP")

    def forward(self, inputs: Tensor) -> Tensor:
        """Map this rank's tokens (tokens, d_model) to outputs of the same shape."""
        # TODO: about 16 lines; `gradsync hint phase3/ExpertParallelMLP` if you are stuck
        raise NotImplementedError("phase3/ExpertParallelMLP")

    def load_full(
        self, router_weight: Tensor, expert_states: Sequence[Mapping[str, Tensor]]
    ) -> None:
        """Copy this rank's part of a full layer; the parameters stay the same objects.

        Args:
            router_weight: the router's weight (E, d_model).
            expert_states: the state dict of each of the E experts.
        """
        # TODO: about 4 lines; `gradsync hint phase3/ExpertParallelMLP` if you are stuck
        raise NotImplementedError("phase3/ExpertParallelMLP")


def load_balancing_loss(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """Return `E * sum(f_e * p_e)`, which is smallest if all experts get equally many tokens.

    `f_e` is the fraction of the tokens of all ranks that chose expert e, and `p_e` their mean
    probability for it. The value is the same on every rank. Its gradients, averaged over the ranks,
    equal those of one process with all tokens. The ranks may have different numbers of tokens, and
    a rank may have none.

    Source: Fedus et al., "Switch Transformers", 2021, section 2.2.

    Args:
        probabilities: of this rank's tokens for each expert, (tokens, E).
        chosen: the expert of each token, (tokens,).
    """
    # TODO: about 12 lines; `gradsync hint phase3/load_balancing_loss` if you are stuck
    raise NotImplementedError("phase3/load_balancing_loss")


def pipeline_1f1b(
    stage: nn.Module,
    microbatches: Sequence[tuple[Tensor | None, Tensor | None]],
    loss_fn: LossFunction,
    optimizer: Optimizer,
) -> float:
    """Take one optimizer step of a model whose stages are on consecutive ranks, in 1F1B order.

    Rank r first runs forward for N - 1 - r microbatches, or for all if there are fewer. Then it
    alternates one forward and one backward, until no forward is left, and ends with the remaining
    backwards. So it never keeps the activations of more than N - r microbatches, whatever their
    number. There may be fewer microbatches than ranks, and any number of ranks, even one.

    Everything else is as in phase 2: rank 0 gets the inputs, each rank sends its stage's outputs to
    the next rank, and the last rank computes the loss from the targets. Nothing else of the batch
    is sent but the gradients of the activations, back. Activations may have any shape and dtype,
    which the receiver learns from the sender. A stage may be frozen. The stages stay in the mode
    that they are in. After the step the parameters still have their gradients. These equal the
    unsplit model's gradients on the whole batch, even if microbatches differ in size.

    Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", 2021, where the
    schedule is called PipeDream-Flush.

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
    # TODO: about 20 lines; `gradsync hint phase3/pipeline_1f1b` if you are stuck
    raise NotImplementedError("phase3/pipeline_1f1b")


def main() -> None:
    """Compare ring attention with attention in one process; run this with torchrun on 2 ranks."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = torch.randn(3, 1, 2, 6 * ranks, 4)  # q, k and v: (batch, heads, sequence, dim)
    mine = ring_attention(*whole.chunk(ranks, dim=3)[rank])
    wanted = nn.functional.scaled_dot_product_attention(*whole, is_causal=True)
    same = torch.allclose(mine, wanted.chunk(ranks, dim=2)[rank], atol=1e-5)
    print(f"rank {rank} of {ranks}, equal to attention in one process: {'yes' if same else 'NO'}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
