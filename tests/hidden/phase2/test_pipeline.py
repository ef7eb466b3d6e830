"""The pipeline: stages on N ranks step as the unsplit model does on the whole batch."""

from collections import OrderedDict
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from gradsync.diagnose.pipelines import (
    diagnose_order,
    pipeline_gradient_mistakes,
    pipeline_loss_mistakes,
)
from gradsync.diagnose.traffic import too_many_bytes
from gradsync.testing import (
    assert_on_every_rank,
    assert_rank_by_rank,
    check,
    differs_from_one_process,
    each,
    exercise,
    hold,
    would_be,
)

GUIDE = "Pipelines"
LEARNING_RATE, MOMENTUM = 0.3, 0.9
CLASSES = 3
WIDE = 2048  # features of an input that is much larger than any activation


class Turn(nn.Module):
    """Swap the last two dimensions: what comes out is not contiguous."""

    def forward(self, inputs):
        return inputs.transpose(1, 2)


def blocks_of(kind):
    """Return the blocks that a model is cut between, the same whenever they are made."""
    torch.manual_seed(11)
    first = {
        "vectors": lambda: nn.Linear(6, 10),
        "wide": lambda: nn.Linear(WIDE, 10),
        "words": lambda: nn.Sequential(nn.Embedding(7, 2), nn.Flatten()),
    }[kind]()
    blocks = [
        nn.Sequential(first, nn.Tanh()),  # (sample, 10)
        nn.Sequential(nn.Unflatten(1, (5, 2)), nn.Linear(2, 3), nn.Tanh()),  # (sample, 5, 3)
        nn.Sequential(Turn(), nn.Linear(5, 4), nn.Tanh(), Turn()),  # (sample, 4, 3)
        nn.Sequential(nn.Flatten(), nn.Linear(12, CLASSES)),
    ]
    if kind == "words":
        blocks[2].append(nn.Unflatten(1, (2, 1, 2, 1)))  # (sample, 2, 1, 2, 1, 3)
    return [block.double() if kind == "words" else block for block in blocks]


def cuts(world_size):
    """Return which blocks each rank has: (first, end)."""
    edges = [round(4 * rank / world_size) for rank in range(world_size + 1)]
    return list(pairwise(edges))


def stage_of(kind, first, end, frozen=()):
    """Return some blocks as one module, under the names that they have in the whole model."""
    blocks = blocks_of(kind)
    for block in frozen:
        blocks[block].requires_grad_(False)
    return nn.Sequential(OrderedDict((str(k), blocks[k]) for k in range(first, end)))


def optimizer_for(model):
    """Return an optimizer of two groups, the weights' and the biases'."""
    params = list(model.parameters())
    groups = [
        {"params": [p for p in params if p.dim() > 1], "lr": LEARNING_RATE},
        {"params": [p for p in params if p.dim() == 1], "lr": LEARNING_RATE / 2},
    ]
    return torch.optim.SGD(groups, momentum=MOMENTUM)


def gradients_of(model):
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def draw_microbatches(rng, sizes, kind="vectors"):
    """Return (inputs, targets) of these sizes; the last class is no sample's."""
    features = {"vectors": 6, "wide": WIDE, "words": 5}[kind]
    microbatches = []
    for size in sizes:
        inputs = rng.standard_normal((size, features), np.float32)
        words = rng.integers(0, 7, (size, features))
        targets = torch.from_numpy(rng.integers(0, CLASSES - 1, size))
        microbatches.append((torch.from_numpy(words if kind == "words" else inputs), targets))
    return microbatches


class Watched(nn.Module):
    """A stage that notes when it runs forward, in which mode, and when backward comes to it."""

    def __init__(self, stage):
        super().__init__()
        self.stage = stage
        self.order = []
        self.modes = []

    def forward(self, inputs):
        self.order.append("forward")
        self.modes.append(self.training)
        outputs = self.stage(inputs)
        if outputs.requires_grad:
            outputs.register_hook(lambda _: self.order.append("backward"))
        return outputs


def probe_steps(rank, world_size, model_parallel, steps, kind="vectors", frozen=(), stray=None):
    """Take a step on each list of microbatches; return all that this rank has then."""
    stage = stage_of(kind, *cuts(world_size)[rank], frozen)
    optimizer = optimizer_for(stage)
    watched = Watched(stage)
    losses = []
    for microbatches in steps:
        fed = [
            (inputs if rank == 0 else stray, targets if rank == world_size - 1 else stray)
            for inputs, targets in microbatches
        ]
        loss_fn = nn.CrossEntropyLoss()
        losses.append(model_parallel.pipeline_train_step(watched, fed, loss_fn, optimizer))
    return {
        "gradients": gradients_of(stage),
        "weights": weights_of(stage),
        "losses": losses,
        "types": ["float" if isinstance(x, float) else type(x).__name__ for x in losses],
        "order": watched.order,
        "trains": all(watched.modes) and watched.training,
    }


def one_process(steps, *, kind="vectors", frozen=(), weigh="samples", zero=True):
    """Do the same with the unsplit model, as it should be or as a mistake would have it."""
    model = stage_of(kind, 0, 4, frozen)
    optimizer = optimizer_for(model)
    losses = []
    for microbatches in steps:
        samples = sum(len(targets) for _, targets in microbatches)
        for group in optimizer.param_groups[: {True: 2, "first": 1, False: 0}[zero]]:
            for param in group["params"]:
                param.grad = None
        losses.append(0.0)
        for k, (inputs, targets) in enumerate(microbatches, start=1):
            factor = {
                "samples": len(targets) / samples,
                "equally": 1 / len(microbatches),
                "summed": 1.0,
                "last": len(targets) / samples * (k == len(microbatches)),
            }[weigh]
            share = nn.functional.cross_entropy(model(inputs), targets) * factor
            share.backward()
            losses[-1] += share.item()
        optimizer.step()
    return {"gradients": gradients_of(model), "weights": weights_of(model), "losses": losses}


def mispaired(microbatches, hop):
    """Return the gradients where those that cross to rank `hop` come back in reversed order."""
    before, after = stage_of("vectors", 0, hop), stage_of("vectors", hop, 4)
    kept = [before(inputs) for inputs, _ in microbatches]
    arrived = [outputs.detach().requires_grad_() for outputs in kept]
    samples = sum(len(targets) for _, targets in microbatches)
    for outputs, (_, targets) in zip(arrived, microbatches, strict=True):
        share = nn.functional.cross_entropy(after(outputs), targets) * len(targets) / samples
        share.backward()
    for outputs, other in zip(kept, reversed(arrived), strict=True):
        outputs.backward(other.grad)
    return {**gradients_of(before), **gradients_of(after)}


def by_rank(values, world_size):
    """Share out what the unsplit model has by name, as its blocks are."""
    return [
        {name: value for name, value in values.items() if first <= int(name[0]) < end}
        for first, end in cuts(world_size)
    ]


def hold_gradients(seen, steps, *, cross=False, **options):
    """Hold every stage's gradients after the last step against the unsplit model's."""
    world_size = len(seen)

    def ended(**mistake):
        return by_rank(one_process(steps, **options, **mistake)["gradients"], world_size)

    mistakes = [(how, ended(weigh=how)) for how in ("equally", "summed", "last")]
    if cross:
        hops = [first for first, _ in cuts(world_size)[1:]]
        mistakes += [("crossed", by_rank(mispaired(steps[-1], h), world_size)) for h in hops]
    assert_rank_by_rank(
        each(seen, lambda kept: kept["gradients"]),
        ended(),
        mistakes=pipeline_gradient_mistakes([*mistakes, ("kept", ended(zero=False))]),
    )


@pytest.mark.parametrize("world_size", [3, 4, 2, 1])
@exercise("phase2/pipeline_train_step", points=1.5)
def test_gradients_are_the_unsplit_models(ranks, rng, world_size):
    """After a step, every stage's gradients are those of the whole model on the whole batch."""
    steps = [draw_microbatches(rng, [2, 2, 2])]

    seen = ranks(probe_steps, world_size, steps=steps)

    hold_gradients(seen, steps, cross=True)


@pytest.mark.parametrize(("world_size", "sizes"), [(3, [4, 1, 2]), (2, [1, 5]), (4, [3])])
@exercise("phase2/pipeline_train_step", points=1.5)
def test_microbatches_weigh_by_their_samples(ranks, rng, world_size, sizes):
    """Microbatches of unequal size, or only one, give the gradients of the whole batch too."""
    steps = [draw_microbatches(rng, sizes)]

    seen = ranks(probe_steps, world_size, steps=steps)

    hold_gradients(seen, steps)


@pytest.mark.parametrize("world_size", [3, 1])
@exercise("phase2/pipeline_train_step", points=1)
def test_every_rank_returns_the_whole_batchs_loss(ranks, rng, world_size):
    """A float on every rank: the mean loss over all samples, before the step."""
    steps = [draw_microbatches(rng, [3, 1, 2])]

    seen = ranks(probe_steps, world_size, steps=steps)

    [loss], [equally], [summed] = (
        one_process(steps, weigh=how)["losses"] for how in ("samples", "equally", "summed")
    )
    types = [kept["types"][0] for kept in seen]
    wrong = [rank for rank, kind in enumerate(types) if kind not in ("float", "NoneType")]
    check(
        not wrong,
        "wrong-signature",
        f"pipeline_train_step returns {types} by rank: a float is wanted (GUIDELINES, {GUIDE})",
        ranks=wrong,
        guide=GUIDE,
    )
    returned = each(seen, lambda kept: kept["losses"][0])
    assert_on_every_rank(
        returned,
        loss,
        mistakes=pipeline_loss_mistakes(equally, summed),
    )


@exercise("phase2/pipeline_train_step", points=1)
def test_several_steps_equal_those_of_one_process(ranks, rng):
    """After several steps the stages have the unsplit model's weights, in both groups."""
    steps = [draw_microbatches(rng, sizes) for sizes in ([2, 3], [3, 1, 1], [1, 2])]

    seen = ranks(probe_steps, 3, steps=steps)

    def ended(steps, **mistake):
        return by_rank(one_process(steps, **mistake)["weights"], 3)

    before = would_be(
        ended([]),
        "does-not-learn",
        "the weights are those from before: the optimizer has taken no step",
        GUIDE,
    )
    first = would_be(
        ended(steps, zero="first"),
        "gradients-not-zeroed",
        "of an optimizer with two groups of parameters only the first group's gradients were "
        "cleared: the weights are those of steps with the other's of all earlier steps added in",
        GUIDE,
    )
    kept = would_be(
        ended(steps, zero=False),
        "gradients-not-zeroed",
        "the weights are those of steps with the gradients of all earlier steps added in: they "
        "have to be cleared for each step",
        GUIDE,
    )
    assert_rank_by_rank(
        each(seen, lambda kept: kept["weights"]),
        ended(steps),
        mistakes=[before, first, kept, differs_from_one_process(GUIDE, "the stages on 3 ranks")],
    )
    hold_gradients(seen, steps)


@exercise("phase2/pipeline_train_step", points=0.75)
def test_only_the_ends_read_their_data(ranks, rng):
    """What inputs other ranks are given than rank 0, and what targets than the last, is ignored."""
    steps = [draw_microbatches(rng, [2, 1])]

    stray = torch.zeros(7, dtype=torch.int64)  # of another size than any microbatch

    seen = ranks(probe_steps, 3, steps=steps, stray=stray)

    hold_gradients(seen, steps)


@exercise("phase2/pipeline_train_step", points=0.75)
def test_all_forwards_come_before_all_backwards(ranks, rng):
    """Every stage runs forward for each microbatch, and only then backward for any."""
    steps = [draw_microbatches(rng, [2, 2, 1, 1])]

    seen = ranks(probe_steps, 3, steps=steps)

    hold(diagnose_order([kept["order"] for kept in seen], 4))
    other = [rank for rank, kept in enumerate(seen) if not kept["trains"]]
    check(
        not other,
        "mode-not-restored",
        "the stages come in training mode, and pipeline_train_step switched them to evaluation: "
        f"dropout, for one, does nothing then (GUIDELINES, {GUIDE})",
        ranks=other,
        guide=GUIDE,
    )
    hold_gradients(seen, steps)


@exercise("phase2/pipeline_train_step", points=0.5)
def test_activations_cross_and_not_batches(ranks, rng):
    """Between ranks go activations and their gradients: no inputs, no weights."""
    steps = [draw_microbatches(rng, [4, 4], "wide")]

    seen = ranks(probe_steps, 3, steps=steps, kind="wide")

    text = (
        "that is a large part of the batch itself, or of the weights. What a rank has to tell the "
        "next are its stage's outputs, here at most 15 numbers a sample, and what comes back are "
        "their gradients"
    )
    hold(too_many_bytes(seen, 8 * WIDE * 4 // 2, text, GUIDE))
    hold_gradients(seen, steps, kind="wide")


@exercise("phase2/pipeline_train_step", points=0.5)
def test_stages_of_double_precision_fed_with_words(ranks, rng):
    """Rank 0 may be fed integers; activations travel as they are, float64 and of six dimensions."""
    steps = [draw_microbatches(rng, [2, 1], "words")]

    seen = ranks(probe_steps, 3, steps=steps, kind="words")

    hold_gradients(seen, steps, kind="words")


@pytest.mark.parametrize("frozen", [0, 1])
@exercise("phase2/pipeline_train_step", points=0.5)
def test_a_frozen_stage_is_passed_by(ranks, rng, frozen):
    """The first stage, or one in the middle, may be frozen: the others' gradients are the same."""
    steps = [draw_microbatches(rng, [2, 1])]

    seen = ranks(probe_steps, 4, steps=steps, frozen=[frozen])

    hold_gradients(seen, steps, frozen=[frozen])
