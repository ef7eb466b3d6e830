"""A module of which each rank keeps a part: its values, and its gradients."""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from gradsync.records import Diagnosis
from gradsync.testing import (
    EXACT,
    assert_on_every_rank,
    by_rank,
    case_by_case,
    check,
    each,
    exercise,
    raise_mistake,
)
from gradsync.testing.values import close
from gradsync.text import listed, ranks_text
from support.probes.sharded import (
    Biased,
    Chain,
    Tied,
    full_state,
    seeded,
    state_of,
    step_of,
    without_gradient,
    wrapped,
)
from support.rules.sharded_modules import GUIDE, absent_gradients, gradient_mistakes

WIDTHS = [5, 7, 3]


def check_that(holds, code, text, ranks=(), guide=GUIDE):
    check(holds, code, text, ranks=ranks, guide=guide)


def probe_start(rank, trainer, seeds):
    """Wrap a module with other values on each rank; return its state before and after."""
    found = []
    for make in (Biased, Tied):
        module = seeded(make, seeds[rank], torch.float32)
        before = state_of(module)
        whole = full_state(wrapped(trainer, module))
        dtypes = {name: str(value.dtype) for name, value in whole.items()}
        found.append({"before": before, "whole": whole, "dtypes": dtypes})
    return found


@exercise("phase3/FullyShardedModule", points=1.25)
def test_all_ranks_begin_with_the_values_of_rank_0(ranks, rng):
    """After wrapping, full_state_dict has rank 0's parameters and buffers, under their names."""
    seeds = by_rank(rng.integers(1000, size=3).tolist())

    for seen in case_by_case(ranks(probe_start, 3, seeds=seeds), 2):
        wanted = seen[0]["before"]
        names = [rank for rank, v in enumerate(seen) if v["whole"].keys() != wanted.keys()]
        strange = sorted(set(seen[names[0]]["whole"]) ^ set(wanted)) if names else []
        check_that(
            not names,
            "missing-name",
            f"full_state_dict differs from the wrapped module's names in {listed(strange)}. It "
            "must have every parameter and buffer under the name in the wrapped module.",
            names,
        )
        own = [
            rank
            for rank in range(1, 3)
            if any(close(seen[rank]["whole"][n], seen[rank]["before"][n], EXACT)
                   and not close(seen[rank]["before"][n], wanted[n], EXACT) for n in wanted)
        ]  # fmt: skip
        check_that(
            not own,
            "models-differ",
            f"After wrapping, {ranks_text(own)} still have values of their own, in parameters or "
            "buffers. All ranks begin with those of rank 0.",
            own,
        )
        check_that(
            all(
                value["dtypes"][n].removeprefix("torch.") == str(wanted[n].dtype).split(".")[-1]
                for value in seen
                for n in wanted
            ),
            "wrong-dtype-sent",
            "full_state_dict must return each tensor in its own dtype.",
        )
        assert_on_every_rank(
            each(seen, lambda value: value["whole"]),
            wanted,
            mistakes=[_mixed],
            otherwise="full_state_dict does not return the values of rank 0",
            roundings=EXACT,
        )


def _mixed(seen, expected):
    """Recognise parameters that are put together from parts of different ranks' values."""
    wrong = sorted({n for v in seen for n in expected[0] if not close(v[n], expected[0][n], EXACT)})
    text = (
        f"After wrapping, {listed(wrong)} of full_state_dict are not rank 0's values. Broadcast "
        "each from rank 0 before you split it, and join the parts in the order of the ranks."
    )
    return Diagnosis("models-differ", tuple(range(len(seen))), text, guide=GUIDE)


def loss_of(output, targets):
    return F.mse_loss(output, targets)


def probe_gradients(rank, trainer, cases):
    """Return for each case the whole gradients of this rank's samples, averaged over ranks."""
    return [gradients_of(rank, trainer, *case) for case in cases]


def gradients_of(rank, trainer, widths, seed, inputs, targets):
    model = wrapped(trainer, seeded(partial(Chain, widths), seed + rank))
    x, y = (torch.from_numpy(part[rank]) for part in (inputs, targets))
    found = step_of(model, lambda: loss_of(model(x), y).backward())
    return {"gradients": found, "absent": without_gradient(model)}


def local_gradients(make, seed, inputs, targets):
    """Return the whole gradients of each rank's samples, in one process."""
    found = []
    for x, y in zip(inputs, targets, strict=True):
        module = seeded(make, seed)
        loss_of(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        found.append({name: np.asarray(p.grad) for name, p in module.named_parameters()})
    return found


def mean_of(local):
    return {name: np.mean([one[name] for one in local], axis=0) for name in local[0]}


def check_gradients(seen, local, otherwise="", **options):
    picked = each(seen, lambda value: value["gradients"])
    mistakes = gradient_mistakes(local, **options)
    assert_on_every_rank(picked, mean_of(local), mistakes=mistakes, otherwise=otherwise)


def draw(rng, world_size, inputs, outputs, batch=4):
    return [rng.standard_normal((world_size, batch, size)) for size in (inputs, outputs)]


@exercise("phase3/FullyShardedModule", points=2.75)
def test_gradients_are_the_mean_over_ranks(ranks, rng):
    """On 3 ranks, for sizes that 3 does not divide, every gradient is the mean over the ranks."""
    seed = int(rng.integers(1000))
    widths = [WIDTHS, [4, 3, 1]]
    drawn = [draw(rng, 3, w[0], w[-1]) for w in widths]
    cases = [(w, seed, by_rank(x), by_rank(y)) for w, (x, y) in zip(widths, drawn, strict=True)]

    observed = case_by_case(ranks(probe_gradients, 3, cases=cases), len(cases))

    for seen, w, (x, y) in zip(observed, widths, drawn, strict=True):
        check_gradients(seen, local_gradients(partial(Chain, w), seed, x, y))
        raise_mistake(absent_gradients([value["absent"] for value in seen]))


@exercise("phase3/FullyShardedModule", points=0.75)
def test_one_rank_and_many_ranks_are_right(ranks, rng):
    """With one rank, and with more ranks than a parameter has elements, gradients are right."""
    seed = int(rng.integers(1000))

    for world_size, widths in ((1, WIDTHS), (4, [4, 3, 1])):
        x, y = draw(rng, world_size, widths[0], widths[-1])
        cases = [(widths, seed, by_rank(x), by_rank(y))]
        [seen] = case_by_case(ranks(probe_gradients, world_size, cases=cases), 1)

        check_gradients(seen, local_gradients(partial(Chain, widths), seed, x, y))


def probe_biased(rank, trainer, seed, inputs, targets):
    """Return the whole gradients of a model with biases, norms and a convolution."""
    model = wrapped(trainer, seeded(Biased, seed))
    model.eval()  # batch statistics would differ between ranks
    x, y = torch.from_numpy(inputs[rank]), torch.from_numpy(targets[rank])
    found = step_of(model, lambda: loss_of(model(x), y).backward())
    names = [name for name, _ in Biased().named_parameters()]
    return {"gradients": {name: found[name] for name in names if name in found}}


@exercise("phase3/FullyShardedModule", points=1.25)
def test_small_parameters_are_averaged(ranks, rng):
    """Biases, norms and a scalar parameter have the mean gradient, too."""
    seed = int(rng.integers(1000))
    x, y = draw(rng, 2, 6, 3)

    seen = ranks(probe_biased, 2, seed=seed, inputs=by_rank(x), targets=by_rank(y))

    local = local_gradients(lambda: Biased().eval(), seed, x, y)
    check_gradients(seen, local)


def probe_tied(rank, trainer, seed, tokens):
    """Return the whole gradients of a model with tied, frozen and unused parameters."""
    model = wrapped(trainer, seeded(Tied, seed + rank))
    ids = torch.from_numpy(tokens[rank])
    found = step_of(model, lambda: F.cross_entropy(model(ids[:, 0]), ids[:, 1]).backward())
    frozen = [p.grad is None or not p.grad.any() for p in model.parameters() if not p.requires_grad]
    return {
        "gradients": {name: found[name] for name in found if name != "offset"},
        "frozen": len(frozen) == 2 and all(frozen),
        "absent": without_gradient(model),
    }


@exercise("phase3/FullyShardedModule", points=2)
def test_tied_frozen_and_unused_parameters_are_right(ranks, rng):
    """A tied parameter gets the gradients of both uses; frozen ones none; unused ones zeros."""
    seed = int(rng.integers(1000))
    tokens = rng.integers(0, 11, (3, 6, 2))

    seen = ranks(probe_tied, 3, seed=seed, tokens=by_rank(tokens))

    check_that(
        all(value["frozen"] for value in seen),
        "frozen-touched",
        "A frozen parameter must stay in parameters() with requires_grad=False, and get no "
        "gradient.",
    )
    local, single = [], []
    for ids in torch.from_numpy(tokens):
        for found, tied in ((local, True), (single, False)):
            module = seeded(Tied, seed)
            if not tied:  # the same values, in two parameters: the gradients of each use
                module.head.weight = torch.nn.Parameter(module.embedding.weight.detach().clone())
            F.cross_entropy(module(ids[:, 0]), ids[:, 1]).backward()
            found.append({
                name: np.zeros(p.shape) if p.grad is None else np.asarray(p.grad)
                for name, p in module.named_parameters(remove_duplicate=False)
            })  # fmt: skip
    check_gradients(seen, local, tied=_one_use(seen, mean_of(local), mean_of(single)))
    raise_mistake(absent_gradients([value["absent"] for value in seen]))


def _one_use(seen, mean, single):
    """Return the gradients with one use of the tied parameter, the use that rank 0 has."""
    names = ("embedding.weight", "head.weight")
    has = seen[0]["gradients"].get(names[0])
    use = next((name for name in names if close(has, single[name])), names[0])
    return {**mean, **dict.fromkeys(names, single[use])}


def probe_passes(rank, trainer, seed, inputs, targets):
    """Return whole gradients after two forwards before a backward, and outputs without one."""
    module = seeded(partial(Chain, WIDTHS), seed)
    plain = seeded(partial(Chain, WIDTHS), seed)
    model = wrapped(trainer, module)
    x, y = torch.from_numpy(inputs[rank]), torch.from_numpy(targets[rank])
    with torch.no_grad():
        silent = model(x[:2])
        expected = plain(x[:2])
    model.eval()
    evaluated = model(x[2:]).detach()
    expected = torch.cat([expected, plain(x[2:]).detach()])
    model.train()
    modes = [model.module.training, model.training]

    def backward():
        first, second = model(x[:2]), model(x[2:])  # both before any backward
        (loss_of(first, y[:2]) + 3 * loss_of(second, y[2:])).backward()

    found = step_of(model, backward)
    outputs = torch.cat([silent.detach(), evaluated])
    return {
        "gradients": found, "outputs": outputs, "expected": expected, "modes": modes,
        "graph": silent.requires_grad,
    }  # fmt: skip


@exercise("phase3/FullyShardedModule", points=2)
def test_several_forwards_and_forwards_without_gradients(ranks, rng):
    """Two forwards before a backward are right, and so are no_grad() and eval()."""
    seed = int(rng.integers(1000))
    x, y = draw(rng, 3, WIDTHS[0], WIDTHS[-1])

    seen = ranks(probe_passes, 3, seed=seed, inputs=by_rank(x), targets=by_rank(y))

    off = [r for r, value in enumerate(seen) if not close(value["outputs"], value["expected"])]
    check_that(
        not off,
        "differs-from-single-process",
        f"On {ranks_text(off)}, the outputs under torch.no_grad() or in eval() are not those of "
        "the wrapped module.",
        off,
    )
    check_that(
        all(value["modes"] == [True, True] and not value["graph"] for value in seen),
        "mode-not-restored",
        "The module's mode changes, or a forward under no_grad() records gradients.",
    )
    local = []
    for a, b in zip(x, y, strict=True):
        module = seeded(partial(Chain, WIDTHS), seed)
        ins, outs = torch.from_numpy(a), torch.from_numpy(b)
        (loss_of(module(ins[:2]), outs[:2]) + 3 * loss_of(module(ins[2:]), outs[2:])).backward()
        local.append({name: np.asarray(p.grad) for name, p in module.named_parameters()})
    check_gradients(seen, local)


def probe_training(rank, trainer, seed, inputs, targets):
    """Train for some steps with AdamW; return the final state."""
    model = wrapped(trainer, seeded(partial(Chain, WIDTHS), seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for x, y in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        loss_of(model(torch.from_numpy(x[rank])), torch.from_numpy(y[rank])).backward()
        model.finish()
        optimizer.step()
    return full_state(model)


@exercise("phase3/FullyShardedModule", points=2)
def test_training_equals_one_process(ranks, rng):
    """After several steps of AdamW, the parameters equal those of one process."""
    seed, steps = int(rng.integers(1000)), 4
    x, y = (rng.standard_normal((steps, 2, 4, size)) for size in (WIDTHS[0], WIDTHS[-1]))

    seen = ranks(probe_training, 2, seed=seed, inputs=by_rank(x, 1), targets=by_rank(y, 1))

    module = seeded(partial(Chain, WIDTHS), seed)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
    for a, b in zip(x, y, strict=True):
        optimizer.zero_grad()
        ins, outs = (torch.from_numpy(part).flatten(0, 1) for part in (a, b))
        loss_of(module(ins), outs).backward()
        optimizer.step()
    assert_on_every_rank(
        seen,
        state_of(module),
        mistakes=[_differs],
        otherwise="after some steps, the parameters are not those of one process",
    )


def _differs(seen, expected):
    wrong = sorted({n for v in seen for n in expected[0] if not close(v.get(n), expected[0][n])})
    if not all(close(value, seen[0]) for value in seen):
        text = f"After four steps, the ranks' values of {listed(wrong)} differ."
        return Diagnosis("models-differ", tuple(range(len(seen))), text, guide=GUIDE)
    text = (
        f"After four steps of AdamW, {listed(wrong)} are not those of one process, although the "
        "first step is right. Check what is left of a step in the next one: gradients must be "
        "cleared by zero_grad, and parameters() must be what the forward uses."
    )
    return Diagnosis("differs-from-single-process", tuple(range(len(seen))), text, guide=GUIDE)
