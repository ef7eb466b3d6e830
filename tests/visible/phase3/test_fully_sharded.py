"""Visible tests of the sharded module and clipping: two ranks, a matrix of 2 x 3, a norm of 3."""

from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from gradsync.testing import assert_on_every_rank, check, each, exercise, raise_mistake
from gradsync.testing.values import close
from gradsync.text import ranks_text
from support.probes.bucket_marks import mark
from support.probes.returned import float_returned
from support.probes.sharded import (
    Chain,
    Layer,
    Memory,
    full_state,
    seeded,
    without_gradient,
    wrapped,
)
from support.rules.buckets import between
from support.rules.clipping import GUIDE as NORM
from support.rules.clipping import norm_mistake
from support.rules.sharded_modules import (
    GUIDE,
    absent_gradients,
    gradient_mistakes,
    held_too_long,
    reduced_late,
    reduced_whole,
    wrong_dtypes,
)


class Small(nn.Module):
    """A matrix of 2 x 3, from `start` to `start + 5`, and a shift of 2 and a buffer of `start`."""

    def __init__(self, start=1.0):
        super().__init__()
        self.layer = nn.Linear(3, 2, bias=False)
        self.shift = nn.Parameter(torch.full((2,), start))
        self.layer.weight.data = start + torch.arange(6.0).view(2, 3)
        self.register_buffer("begin", torch.tensor([start]))

    def forward(self, x):
        return self.layer(x) + self.shift


@exercise("phase3/FullyShardedModule", points=1)
def test_two_ranks_keep_three_of_six_elements(ranks):
    """2 x 3 numbers on 2 ranks: each keeps 3 of them and the 2 small ones, in memory of its own.

    Of 2 x 2 x 2 numbers, it keeps 4.
    """

    def probe(rank, trainer):
        module = Small(1.0 + rank)
        module.cube = nn.Parameter(torch.full((2, 2, 2), 1.0 + rank))
        model = wrapped(trainer, module)
        kept = [p.untyped_storage().nbytes() // p.itemsize for p in model.parameters()]
        state = full_state(model)
        return [
            sorted(kept),
            *(state[name].tolist() for name in ("layer.weight", "shift", "begin")),
            state["cube"].unique().tolist(),
        ]

    seen = ranks(probe, 2)

    check(
        [value[0] for value in seen] == [[2, 3, 4], [2, 3, 4]],
        "parameters-not-sharded",
        f"The memory of parameters() has {[value[0] for value in seen]} elements by rank, but "
        "should have [2, 3, 4]: the small parameter, half of the matrix, and half of the parameter "
        "with three dimensions.",
        ranks=range(2),
        guide=GUIDE,
    )
    right = [[[1, 2, 3], [4, 5, 6]], [1, 1], [1], [1]]
    names = ["layer.weight", "shift", "the buffer begin", "cube"]
    for name, wanted, *found in zip(names, right, *(value[1:] for value in seen), strict=True):
        check(
            found == [wanted, wanted],
            "models-differ",
            f"Every rank must begin with rank 0's values. Of {name} these are {wanted}, but "
            f"full_state_dict has {found[0]} on rank 0 and {found[1]} on rank 1.",
            ranks=range(2),
            guide=GUIDE,
        )


def probe_step(rank, trainer):
    """Take a step of size 1 with a loss that weights row i by 1.001 * (i + 1) * (rank + 1)."""
    model = wrapped(trainer, Small())
    before = full_state(model)
    x = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    (1.001 * (rank + 1) * model(x) * torch.tensor([1.0, 2.0])).sum().backward()
    model.finish()
    absent = without_gradient(model)
    optimizer.step()
    after = full_state(model)
    moved = {name: before[name] - after[name] for name in ("layer.weight", "shift")}
    return {"gradients": moved, "absent": absent, "inputs": x.grad}


@exercise("phase3/FullyShardedModule", points=1)
def test_gradients_are_the_mean_over_two_ranks(ranks):
    """Rank 1's gradients are twice those of rank 0: 1.001 * (1 2 3, 2 4 6), and 1.001 * (1 2).

    Those of the inputs stay on their rank: 1.001 * (9 12 15), and twice that.
    """
    seen = ranks(probe_step, 2)

    rows, values = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0])
    local = [
        {"layer.weight": 1.001 * n * torch.outer(rows, values), "shift": 1.001 * n * rows}
        for n in (1, 2)
    ]
    mean = {name: (one + local[1][name]) / 2 for name, one in local[0].items()}
    assert_on_every_rank(
        each(seen, lambda value: value["gradients"]), mean, mistakes=gradient_mistakes(local)
    )
    for rank, value in enumerate(seen):
        wanted = 1.001 * (rank + 1) * torch.tensor([[9.0, 12.0, 15.0]])
        check(
            close(value["inputs"], wanted),
            "differs-from-single-process",
            f"The gradient of rank {rank}'s inputs is {value['inputs'].tolist()}, but should be "
            f"{wanted.tolist()}. Backward saves a view of the gathered matrix: give it the same "
            "size, stride and offset after gathering again.",
            ranks=[rank],
            guide=GUIDE,
        )
    raise_mistake(absent_gradients([value["absent"] for value in seen]))


@exercise("phase3/FullyShardedModule", points=1)
def test_a_matrix_is_whole_only_while_it_computes(ranks):
    """Two layers: in the first one's forward and backward the second is not whole; then none is."""

    def probe(trainer):
        moments, memory = [], Memory()
        module = seeded(partial(Chain, [5, 6, 7]), 1, torch.float32)  # the same on both ranks
        whole = {n: p.detach() for n, p in module.named_parameters() if p.dim() > 1}

        def look(what, layer=""):
            moments.append([what, layer, memory.held(whole, layer)])

        with memory:
            make = partial(Chain, [5, 6, 7], look)
            model = wrapped(trainer, seeded(make, 1, torch.float32))
            look("after wrapping")
            output = model(torch.ones(2, 5))
            look("between forward and backward")
            output.sum().backward()
            look("after backward")
            model.finish()
        return moments

    seen = ranks(probe, 2)

    for rank, moments in enumerate(seen):
        raise_mistake(held_too_long([tuple(moment) for moment in moments], rank))


@exercise("phase3/FullyShardedModule", points=1)
def test_bfloat16_goes_out_and_float32_comes_back(ranks):
    """With compute_dtype, parts travel as bfloat16, gradients as float32, by reduce-scatter.

    The matrices have 48 and 60 elements. At most one's gradient is reduced in finish().
    """

    def probe(trainer):
        group = dist.new_group()
        module = nn.Sequential(Layer(8, 6), nn.LayerNorm(6), Layer(6, 10))
        model = wrapped(trainer, module, compute_dtype=torch.bfloat16)
        mark(group, 1)
        model(torch.ones(2, 8)).float().sum().backward()
        mark(group, 2)
        model.finish()
        mark(group, 3)
        whole = full_state(model).values()
        return [str(t.dtype) for t in [*whole, *(p.grad for p in model.parameters())]]

    seen = ranks(probe, 2)

    for rank in range(2):
        calls = between(seen, rank, (1, 3))
        raise_mistake(wrong_dtypes(calls, rank, "bfloat16", "float32"))
        raise_mistake(reduced_whole(calls, 24))
        raise_mistake(reduced_late(between(seen, rank, (2, 3)), 24, 60))
    check(
        all(set(value) == {"torch.float32"} for value in seen),
        "wrong-dtype-sent",
        f"full_state_dict and the gradients have the dtypes {sorted(set(seen[0]))}. Parameters and "
        "gradients stay in float32.",
        guide="Half precision",
    )


@exercise("phase3/FullyShardedModule", points=1)
def test_tied_frozen_and_unused_parameters(ranks):
    """A matrix used twice gets both gradients; frozen ones none; unused ones zeros.

    Unused are a matrix of 5 and a shift of 5. A step leaves them.
    """

    def probe(trainer):
        module = nn.Module()
        module.first, module.second = Layer(2, 2), Layer(2, 2)
        module.second.weight = module.first.weight
        module.frozen, module.unused = Layer(2, 2), Layer(2, 2)
        for name, value in (("first", 1.0), ("frozen", 1.0), ("unused", 5.0)):
            nn.init.constant_(getattr(module, name).weight, value)
        module.unused.shift = nn.Parameter(torch.full((2,), 5.0))
        module.frozen.requires_grad_(False)
        module.forward = lambda x: module.second(module.frozen(module.first(x)))
        model = wrapped(trainer, module)
        with torch.no_grad():
            first = model(torch.ones(1, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        both = model(torch.ones(1, 2)) + model(torch.ones(1, 2))  # two forwards, one backward
        both.sum().backward()
        model.finish()
        absent = without_gradient(model)
        optimizer.step()
        state = full_state(model)
        return [first.tolist(), [state[f"{name}.weight"][0, 0].item() for name in
                                 ("first", "second", "frozen", "unused")], absent]  # fmt: skip

    seen = ranks(probe, 2)

    for outputs, values, _ in seen:
        check(
            outputs == [[8.0, 8.0]],
            "differs-from-single-process",
            f"Under no_grad(), three matrices of ones give {outputs} for two ones; it must be 8.",
            guide=GUIDE,
        )
        check(
            values[2:] == [1.0, 5.0],
            "frozen-touched",
            f"A step changes the frozen matrix of 1 to {values[2]} or the unused one of 5 to "
            f"{values[3]}.",
            guide=GUIDE,
        )
        # Each use adds 2 * 4 in each of the two forwards: 1 - 2 * (4 + 4 ...).
        check(
            values[0] == values[1] == -15.0,
            "tied-parameters-wrong",
            f"A step of size 1 changes the tied matrix from 1 to {values[:2]}. Two forwards with "
            "two uses, each with the gradient 4, make it -15.",
            guide=GUIDE,
        )
    raise_mistake(absent_gradients([value[2] for value in seen]))


@exercise("phase3/clip_grad_norm_", points=1)
def test_a_norm_over_two_ranks(ranks):
    """Six elements of 2 and two of 1: the norm is the root of 26, also if it is clipped to 1."""

    def probe(trainer):
        model = wrapped(trainer, Small())
        found = []
        for value, limit in ((1.0, 100.0), (1.0, 1.0), (float("inf"), 1.0)):
            for p in model.parameters():
                p.grad = torch.full_like(p, 1.0 if p.numel() == 2 else 2.0) * value
            norm = float_returned(trainer.clip_grad_norm_(model, limit), "clip_grad_norm_")
            grads = {p.numel(): p.grad.view(-1)[0].item() for p in model.parameters()}
            found.append([norm, grads[2], grads[3]])
        return found

    seen = ranks(probe, 2)

    root = 26**0.5
    grads = {"layer.weight": np.full((2, 3), 2.0), "shift": np.ones(2)}
    for number, scale in ((0, 1.0), (1, 1 / root)):
        norms = [value[number][0] for value in seen]
        raise_mistake(norm_mistake(norms, grads, limit=1.0 if number else 100.0))
        wrong = [
            rank
            for rank, value in enumerate(seen)
            if max(abs(value[number][1] - scale), abs(value[number][2] - 2 * scale)) > 1e-5
        ]
        check(
            not wrong,
            "not-clipped" if number else "clipped-too-much",
            f"With max_norm={1 if number else 100}, gradients of 1 and 2 must become {scale:.4f} "
            f"and {2 * scale:.4f}, but are {seen[0][number][1:]} on {ranks_text(wrong)}.",
            ranks=wrong,
            guide=NORM,
        )
    check(
        all(value[2] == [float("inf")] * 3 for value in seen),
        "clipped-too-much",
        f"With infinite gradients, the norm and the gradients become {seen[0][2]}. The norm is "
        "infinite, and the gradients must stay as they are.",
        guide=NORM,
    )
