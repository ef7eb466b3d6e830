"""Loading a full linear layer into its parts on the ranks, and training with them."""

import numpy as np
import torch
from torch import nn

from gradsync.testing import assert_on_every_rank, case_by_case, exercise, raise_mistake
from support.probes.parallel_layers import probe_loading, probe_whole
from support.rules.parallel_layers import loaded_wrongly, unlike_linear
from support.rules.split_layers import check_blocks
from support.rules.wrong_results import ends_with

GUIDE = "Tensor parallelism"
INPUTS, HIDDEN, OUTPUTS = 5, 12, 3
LEARNING_RATE, MOMENTUM = 0.3, 0.5
BEFORE = 0.25  # the value of every parameter before the full layer is loaded


def draw_mlp(rng):
    """Return the weights and biases of two layers."""
    shapes = {
        "first": (HIDDEN, INPUTS),
        "first_bias": (HIDDEN,),
        "second": (OUTPUTS, HIDDEN),
        "second_bias": (OUTPUTS,),
    }
    return {n: torch.from_numpy(rng.standard_normal(s, np.float32) / 2) for n, s in shapes.items()}


class ParallelMLP(nn.Module):
    """Two layers in parts, and an optimizer created before the weights are loaded."""

    def __init__(self, model_parallel, full, bias=True):
        super().__init__()
        self.column = model_parallel.ColumnParallelLinear(INPUTS, HIDDEN, bias)
        self.row = model_parallel.RowParallelLinear(HIDDEN, OUTPUTS, bias)
        for param in self.parameters():
            param.data.fill_(BEFORE)
        self.optimizer = torch.optim.SGD(self.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        for layer, name in ((self.column, "first"), (self.row, "second")):
            whole_bias = full[f"{name}_bias"] if bias else None
            model_parallel.load_full_linear(layer, full[name], whole_bias)

    def forward(self, inputs):
        return self.row(torch.tanh(self.column(inputs)))


class WholeMLP(nn.Module):
    """The same layers in one process."""

    def __init__(self, full, bias=True):
        super().__init__()
        self.column = nn.Linear(INPUTS, HIDDEN, bias)
        self.row = nn.Linear(HIDDEN, OUTPUTS, bias)
        self.load_state_dict(
            {
                f"{layer}.{param}": full[name + suffix]
                for layer, name in (("column", "first"), ("row", "second"))
                for param, suffix in (("weight", ""), ("bias", "_bias"))[: 1 + bias]
            }
        )
        self.optimizer = torch.optim.SGD(self.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

    def forward(self, inputs):
        return self.row(torch.tanh(self.column(inputs)))


SPLIT = {"first": 0, "first_bias": 0, "second": 1}  # the dimension along which it is split


PARTS = {  # parameters for which every rank may have loaded the same part
    ("first", "first_bias", "second"): "the layers",
    ("first", "second"): "the weights",
    ("first", "first_bias"): "the column layer",
    ("first",): "the column layer's weight",
    ("second",): "the row layer's weight",
    ("first_bias",): "the column layer's bias",
}


def part_on_every_rank(full, rank, world_size, names=tuple(SPLIT)):
    """Return the full layers as if every rank had the parts of `rank`."""
    dims = {name: SPLIT[name] for name in names}
    return {
        name: torch.cat([t.chunk(world_size, dims[name])[rank]] * world_size, dims[name])
        if name in dims
        else t
        for name, t in full.items()
    }


@exercise("phase2/load_full_linear", points=0.75)
def test_the_parts_together_are_the_full_layer(ranks, rng):
    """After loading, a column layer and then a row layer give the same outputs as full layers.

    So does each of them alone, if it gathers its outputs or splits its inputs.
    """
    full = draw_mlp(rng)
    inputs = torch.from_numpy(rng.standard_normal((4, INPUTS), np.float32))

    def probe(model_parallel, full, inputs):
        return [ParallelMLP(model_parallel, full, bias)(inputs) for bias in (True, False)]

    seen = ranks(probe, 3, full=full, inputs=inputs)

    for outputs, bias in zip(case_by_case(seen, 2), (True, False), strict=True):
        assert_on_every_rank(
            outputs,
            WholeMLP(full, bias)(inputs).detach(),
            mistakes=loading_mistakes(full, inputs, bias, len(seen)),
        )
    hidden = torch.from_numpy(rng.standard_normal((4, HIDDEN), np.float32))
    whole = {name: full[name] for name in ("first", "second")}
    whole |= {"inputs": inputs, "hidden": hidden}
    check_blocks(ranks(probe_whole, 3, **whole), **whole)


def loading_mistakes(full, inputs, bias, world_size):
    """Return the rules that recognise wrongly loaded parameters by the layers' outputs."""

    def ends(changed):
        return [WholeMLP(changed, bias)(inputs).detach()] * world_size

    first, second = ({**full, n: torch.full_like(full[n], BEFORE)} for n in full if "bias" in n)
    no_second = {**full, "second_bias": torch.zeros_like(full["second_bias"])}
    neither = {**first, "second_bias": second["second_bias"]}
    without = (
        "The outputs match the full weights with different biases. Load the biases too: this "
        "rank's part in a column layer, the complete bias in a row layer."
    )
    alone = [ends(full)[:1] + ends(wrong)[1:] for wrong in (second, no_second)]
    return [
        *(
            ends_with(
                ends(part_on_every_rank(full, rank, world_size, names)),
                "same-shard-on-every-rank",
                f"Every rank has loaded the part of rank {rank} of {PARTS[names]}. Each rank must "
                "load its own part.",
                GUIDE,
            )
            for rank in range(world_size)
            for names in PARTS
        ),
        *(
            ends_with(
                outputs,
                "only-one-rank-has-it",
                "Only rank 0 has loaded the row layer's bias. Every rank adds the bias to the sum, "
                "so load all of it on every rank.",
                GUIDE,
            )
            for outputs in alone
        ),
        *(
            ends_with(ends(changed), "differs-from-single-process", without, GUIDE)
            for changed in (first, second, neither)
        ),
        unlike_linear("The output of a column layer and a row layer after loading"),
    ]


@exercise("phase2/load_full_linear", points=0.5)
def test_the_layers_parameters_stay_the_same_objects(ranks, rng):
    """Loading copies: the parameters stay the same objects, and share no memory with the input."""
    full = draw_mlp(rng)

    seen = ranks(probe_loading, 2, full=full)

    raise_mistake(loaded_wrongly(seen, full))


@exercise("phase2/load_full_linear", points=0.75)
def test_an_mlp_in_parts_trains_like_the_full_one(ranks, rng):
    """Column and row layers loaded after their optimizer was created train like full layers."""
    full = draw_mlp(rng)
    inputs = torch.from_numpy(rng.standard_normal((3, 4, INPUTS), np.float32))  # (step, sample, in)
    targets = torch.from_numpy(rng.standard_normal((3, 4, OUTPUTS), np.float32))

    def probe(model_parallel, full, inputs, targets):
        return trained(ParallelMLP(model_parallel, full), inputs, targets)

    seen = ranks(probe, 4, full=full, inputs=inputs, targets=targets)

    whole = trained(WholeMLP(full), inputs, targets)
    untrained = WholeMLP(full)(inputs[-1]).detach()
    assert_on_every_rank(
        seen,
        whole,
        mistakes=[
            ends_with(
                [untrained] * len(seen),
                "tensors-replaced",
                "An optimizer created before load_full_linear no longer trains the layer, because "
                "the layer's parameters are now new objects. Copy into the existing parameters.",
                GUIDE,
            ),
            unlike_linear(
                "After training, the output of two layers loaded after their optimizer was created"
            ),
        ],
    )


def trained(model, inputs, targets):
    """Return the outputs for the last batch after a step on each."""
    for x, y in zip(inputs, targets, strict=True):
        model.optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        model.optimizer.step()
    return model(inputs[-1]).detach()
