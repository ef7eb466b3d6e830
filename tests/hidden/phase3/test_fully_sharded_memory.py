"""A sharded module: what a rank keeps in memory, and what it sends, in which dtype and when."""

from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F

from gradsync.testing import check, exercise, raise_mistake
from gradsync.testing.values import close
from gradsync.text import listed
from support.probes.bucket_marks import mark
from support.probes.sharded import Biased, Chain, Layer, Memory, full_state, seeded, wrapped
from support.rules.buckets import between
from support.rules.sharded_modules import (
    GUIDE,
    gathered_too_often,
    held_too_long,
    reduced_late,
    reduced_whole,
    shares_too_large,
    wrong_dtypes,
)

WIDTHS = [10, 13, 9, 11, 8]
BATCH = 2


def check_that(holds, code, text, ranks=(), guide=GUIDE):
    check(holds, code, text, ranks=ranks, guide=guide)


def kind_of(widths):
    return partial(Chain, widths) if widths else Biased


def probe_kept(trainer, seed, widths):
    """Return how many elements the memory of parameters() has, in all and of each dtype."""
    model = wrapped(trainer, seeded(kind_of(widths), seed, torch.float32))
    storages = {p.untyped_storage().data_ptr(): p for p in model.parameters() if p.numel()}
    kept = sum(p.untyped_storage().nbytes() // p.itemsize for p in storages.values())
    return [kept, sorted({str(p.dtype) for p in model.parameters()}), len(full_state(model))]


@exercise("phase3/FullyShardedModule", points=1.25)
def test_a_rank_keeps_its_part_of_each_parameter(ranks, rng):
    """parameters() have at most ceil(numel / N) elements of each of two or more dimensions."""
    seed = int(rng.integers(1000))

    for world_size, widths in ((4, WIDTHS), (3, None)):
        seen = ranks(probe_kept, world_size, seed=seed, widths=widths)

        module = kind_of(widths)()
        whole = {n: tuple(p.shape) for n, p in module.named_parameters() if p.dim() > 1}
        small = sum(p.numel() for p in module.parameters() if p.dim() < 2)
        raise_mistake(shares_too_large([value[0] for value in seen], whole, small))
        elements = sum(p.numel() for p in module.parameters())
        check_that(
            sum(value[0] for value in seen) >= elements,
            "parameters-not-gathered",
            f"Together, the ranks keep {sum(value[0] for value in seen)} elements of {elements}.",
        )
        check_that(
            all(value[1] == ["torch.float32"] for value in seen),
            "wrong-dtype-sent",
            f"parameters() have the dtypes {seen[0][1]}, but must have the module's, float32.",
        )


def probe_moments(rank, trainer, seed, inputs, compute):
    """Return which whole parameters are in memory in each layer, between passes and at the end."""
    moments = []
    known = seeded(partial(Chain, WIDTHS), seed, torch.float32)
    whole = {n: p.detach() for n, p in known.named_parameters() if p.dim() > 1}
    options = {"compute_dtype": getattr(torch, compute)} if compute else {}
    memory = Memory()

    def look(what, layer=""):
        moments.append([what, layer, memory.held(whole, layer)])

    with memory:
        make = partial(Chain, WIDTHS, look)
        model = wrapped(trainer, seeded(make, seed + rank, torch.float32), **options)
        look("after wrapping")
        output = model(torch.from_numpy(inputs[rank]))
        look("between forward and backward")
        output.square().mean().backward()
        del output
        look("after backward")
        model.finish()
        look("after finish()")
        with torch.no_grad():
            model(torch.from_numpy(inputs[rank]))
        look("after a forward without gradients")
    return moments


def check_moments(seen):
    for rank, moments in enumerate(seen):
        raise_mistake(held_too_long([tuple(moment) for moment in moments], rank))
    layers = [layer for what, layer, _ in seen[0] if what in ("forward", "backward")]
    check_that(
        len(layers) == 3 * (len(WIDTHS) - 1),
        "differs-from-single-process",
        "The wrapped module's submodules must compute once in each forward and backward.",
    )


@exercise("phase3/FullyShardedModule", points=2.75)
def test_a_parameter_is_whole_only_while_its_layer_computes(ranks, rng):
    """In forward and backward, only the layer that computes is whole; between passes, none is."""
    inputs = rng.standard_normal((2, BATCH, WIDTHS[0])).astype("float32")

    seen = ranks(probe_moments, 2, seed=int(rng.integers(1000)), inputs=inputs, compute=None)

    check_moments(seen)


@exercise("phase3/FullyShardedModule", points=0.75)
def test_low_precision_copies_are_let_go_too(ranks, rng):
    """With compute_dtype, no whole parameter stays in that dtype or in its own."""
    inputs = rng.standard_normal((2, BATCH, WIDTHS[0])).astype("float32")

    seen = ranks(probe_moments, 2, seed=int(rng.integers(1000)), inputs=inputs, compute="bfloat16")

    check_moments(seen)


def probe_messages(rank, trainer, seed, inputs, compute):
    """Mark the beginning of a step, of its backward, of finish, and the end."""
    group = dist.new_group()
    options = {"compute_dtype": getattr(torch, compute)} if compute else {}
    model = wrapped(trainer, seeded(partial(Chain, WIDTHS), seed, torch.float32), **options)
    before = full_state(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    mark(group, 1)
    output = model(torch.from_numpy(inputs[rank]))
    mark(group, 2)
    output.float().square().mean().backward()
    mark(group, 3)
    model.finish()
    mark(group, 4)
    optimizer.step()
    dtypes = sorted({str(p.grad.dtype) for p in model.parameters() if p.grad is not None})
    after = full_state(model)
    return {
        "output": output.detach().float(), "dtypes": dtypes,
        "full": sorted({str(value.dtype) for value in after.values()}),
        "update": {name: (before[name] - after[name]) * 1e3 for name in before},
    }  # fmt: skip


def sizes():
    return [p.numel() for p in Chain(WIDTHS).parameters() if p.dim() > 1]


@exercise("phase3/FullyShardedModule", points=1.25)
def test_each_parameter_is_gathered_twice_and_its_gradient_scattered(ranks, rng):
    """A step sends each part twice; gradients are reduce-scattered, while backward goes on."""
    world_size = 3
    inputs = rng.standard_normal((world_size, BATCH, WIDTHS[0])).astype("float32")

    seen = ranks(
        probe_messages, world_size, seed=int(rng.integers(1000)), inputs=inputs, compute=None
    )

    steps = [between(seen, rank, (1, 4)) for rank in range(world_size)]
    small = sum(p.numel() for p in Chain(WIDTHS).parameters() if p.dim() < 2)
    raise_mistake(reduced_whole(steps[0], small))
    parts = sum(-(-n // world_size) for n in sizes())
    raise_mistake(gathered_too_often(steps, 2 * 4 * parts))
    raise_mistake(reduced_late(between(seen, 0, (3, 4)), small, max(sizes()) + world_size))


@exercise("phase3/FullyShardedModule", points=1.25)
def test_parameters_are_sent_in_compute_dtype_and_gradients_in_their_own(ranks, rng):
    """With compute_dtype=bfloat16, parts are gathered as bfloat16, gradients summed as float32."""
    world_size = 2
    inputs = rng.standard_normal((world_size, BATCH, WIDTHS[0])).astype("float32")
    seed = int(rng.integers(1000))

    seen = ranks(probe_messages, world_size, seed=seed, inputs=inputs, compute="bfloat16")

    for rank in range(world_size):
        raise_mistake(wrong_dtypes(between(seen, rank, (1, 4)), rank, "bfloat16", "float32"))
    check_that(
        all(value["dtypes"] == ["torch.float32"] for value in seen),
        "wrong-dtype-sent",
        f"The gradients have the dtypes {seen[0]['dtypes']}, but must have those of their "
        "parameters, float32.",
        guide="Half precision",
    )
    check_rounded(seen, seed, inputs)


def check_rounded(seen, seed, inputs):
    """Compare outputs and updates with float32: they differ by roundings, and by no more."""
    model = seeded(partial(Chain, WIDTHS), seed, torch.float32)
    exact = [model(torch.from_numpy(x)) for x in inputs]
    torch.stack([out.square().mean() for out in exact]).mean().backward()
    for rank, out in enumerate(exact):
        value = seen[rank]["output"]
        check_that(
            close(value, out.detach(), 2.0**19),
            "differs-from-single-process",
            f"With compute_dtype=bfloat16, the outputs of rank {rank} are far from the exact ones.",
            [rank],
            "Half precision",
        )
        check_that(
            not close(value, out.detach(), 2.0**6),
            "wrong-dtype-sent",
            "With compute_dtype=bfloat16, the outputs are as exact as in float32: the parameters "
            "are gathered or computed in their own dtype.",
            [rank],
            "Half precision",
        )
    for rank, value in enumerate(seen):
        check_that(
            value["full"] == ["torch.float32"],
            "wrong-dtype-sent",
            f"With compute_dtype=bfloat16, full_state_dict of a float32 module returns tensors of "
            f"the dtypes {listed(value['full'])}. It must return the parameters' own dtype.",
            [rank],
            "Half precision",
        )
    for name, param in model.named_parameters():
        check_that(
            all(close(value["update"][name], param.grad, 2.0**20) for value in seen),
            "wrong-dtype-sent",
            f"With compute_dtype=bfloat16, a small step changes {name} by something else than the "
            "gradient. The optimizer must step the parameter in its own dtype: small changes are "
            "lost in bfloat16.",
            guide="Half precision",
        )


def probe_small(rank, trainer, seed, inputs):
    """Return the dtypes in which norms and layers compute, of gradients, and of the outputs."""
    dtypes = {}
    module = seeded(partial(Chain, WIDTHS), seed, torch.float32)
    for name, part in module.named_modules():
        if isinstance(part, (Layer, torch.nn.LayerNorm)):
            plain = part.forward

            def forward(x, part=part, name=name, plain=plain):
                dtypes[name] = str(part.weight.dtype)
                return plain(x)

            part.forward = forward
    model = wrapped(trainer, module, compute_dtype=torch.bfloat16)
    output = model(torch.from_numpy(inputs[rank]))
    F.mse_loss(output.float(), torch.zeros_like(output).float()).backward()
    model.finish()
    return [dtypes, sorted({str(p.grad.dtype) for p in model.parameters()})]


@exercise("phase3/FullyShardedModule", points=0.75)
def test_small_parameters_stay_in_their_own_dtype(ranks, rng):
    """With compute_dtype, norms compute in float32, and layers in compute_dtype."""
    inputs = rng.standard_normal((2, BATCH, WIDTHS[0])).astype("float32")

    seen = ranks(probe_small, 2, seed=int(rng.integers(1000)), inputs=inputs)

    dtypes, gradients = seen[0]
    layers = {name: dtype for name, dtype in dtypes.items() if name.startswith("layers")}
    norms = {name: dtype for name, dtype in dtypes.items() if name.startswith("norms")}
    check_that(
        set(norms.values()) == {"torch.float32"},
        "wrong-dtype-sent",
        f"Norms compute with weights of {sorted(set(norms.values()))}. Parameters with fewer than "
        "two dimensions keep their own dtype, float32.",
        guide="Half precision",
    )
    check_that(
        set(layers.values()) == {"torch.bfloat16"} and gradients == ["torch.float32"],
        "wrong-dtype-sent",
        f"Layers compute with weights of {sorted(set(layers.values()))} and gradients are "
        f"{gradients}. With compute_dtype=bfloat16, weights are bfloat16 while a layer computes, "
        "and gradients have the parameters' dtype, float32.",
        guide="Half precision",
    )
