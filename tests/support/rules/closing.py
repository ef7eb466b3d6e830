"""Mistakes in a training run, recognised step by step, for the check of `gradsync train`.

A run has a dict for each rank, as `support.probes.closing.observed` returns it. A step of SGD moves
the weights by `-lr` times a gradient, plus momentum from the second step on. So each step shows the
gradient that the rank used, which is compared with the one of a single process on the samples of
all ranks, at the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradsync.records import Diagnosis
from gradsync.testing.values import EXACT, close
from gradsync.text import listed, ranks_text, verb
from support.probes.closing import (
    BATCH_SIZE,
    EPOCHS,
    SHARE,
    samples_for,
    weights_before,
)
from support.probes.training import LEARNING_RATE, Classifier, Samples
from support.rules.epochs import (
    order_of_another_epoch,
    other_epochs,
    other_shares,
    trained_on_others,
)
from support.rules.histories import Run, other_numbers, other_rows
from support.rules.means import other_means
from support.rules.training import batches_divided, models_differ, other_counts, trained_a_copy

Vector = NDArray[np.float64]  # of all parameters
Weights = dict[str, Tensor]
TOLERANCE = 1e-4  # of a gradient's largest element; gradients may have been sent as float32
MANY_STEPS = 10_000.0  # roundings (see `close`), 0.1 % of the largest weight
PARAMETERS = tuple(name for name, _ in Classifier(0).named_parameters())


@dataclass(frozen=True)
class Headings:
    """The headings of a phase's GUIDELINES.md."""

    training: str
    shares: str
    epochs: str
    start: str
    mean: str
    evaluation: str


def closing_mistake(seen: Run, headings: Headings) -> Diagnosis | None:
    """Return the first mistake in a run of all ranks, or None if it equals one process's."""
    samples = samples_for(len(seen))[0][1].size
    trained = [value["trained"] for value in seen]
    before = [weights_before(rank) for rank in range(len(seen))]
    checks: Sequence[Callable[[], Diagnosis | None]] = (
        lambda: _not_trained(seen, headings.training),
        lambda: trained_a_copy(seen, before, headings.training),
        lambda: _other_start(seen, before, headings.start),
        lambda: _never_moves(seen, headings.training),
        lambda: batches_divided(seen, BATCH_SIZE, headings.shares),
        lambda: trained_on_others(seen, headings.shares),
        lambda: other_epochs(trained, EPOCHS, samples, headings.training),
        lambda: _too_few(trained, samples, headings.shares),
        lambda: other_shares(
            [own[:SHARE] for own in trained],
            max(map(len, trained)) // EPOCHS,
            samples,
            headings.shares,
        ),
        lambda: other_counts(seen, EPOCHS * SHARE, headings.shares),
        lambda: _same_order(trained, headings.epochs),
        lambda: order_of_another_epoch(seen, headings.epochs),
        lambda: _other_steps(seen, headings),
        lambda: models_differ(seen, headings.start),
        lambda: other_rows(seen, headings.training),
        lambda: _other_history(seen, headings),
    )
    return next((found for check in checks if (found := check()) is not None), None)


def different_weights(models: Sequence[Weights], guide: str) -> Diagnosis | None:
    """Recognise ranks whose trained models differ by more than a different order of additions."""
    wrong = [rank for rank, own in enumerate(models) if not close(own, models[0], MANY_STEPS)]
    if not wrong:
        return None
    text = (
        f"After training, the weights of {ranks_text(wrong)} differ from rank 0's. All ranks must "
        "start from rank 0's weights and take the same steps, in every epoch."
    )
    return _found("models-differ", text, guide, wrong)


def _not_trained(seen: Run, guide: str) -> Diagnosis | None:
    idle = [rank for rank, value in enumerate(seen) if not value["steps"]]
    if not idle:
        return None
    text = (
        f"On {ranks_text(idle)}, train returned without training the model on a single sample. "
        "Every rank must train on each batch of its loader."
    )
    return _found("does-not-learn", text, guide, idle)


def _other_start(seen: Run, before: Sequence[Weights], guide: str) -> Diagnosis | None:
    """Recognise ranks that do not take their first step from rank 0's weights."""
    starts = [value["steps"][0][1] for value in seen]
    wrong = [rank for rank, start in enumerate(starts) if not _same(start, before[0])]
    if not wrong:
        return None
    source = next((r for r, own in enumerate(before) if all(_same(s, own) for s in starts)), None)
    if source is not None:
        text = (
            f"Every rank starts from rank {source}'s weights. They must start from rank 0's: "
            "broadcast with src=0."
        )
        return _found("wrong-source", text, guide, range(len(seen)))
    if all(_same(starts[rank], before[0], PARAMETERS) for rank in wrong):
        text = (
            f"At the first step, {ranks_text(wrong)} {verb(wrong, 'has', 'have')} rank 0's "
            "parameters, but not its buffers. "
            "Broadcast the buffers too, before the first step."
        )
        return _found("buffers-not-broadcast", text, guide, wrong)
    if all(_same(starts[rank], before[rank]) for rank in wrong):
        what = verb(wrong, "still has its own weights", "still have their own weights")
    else:
        what = f"{verb(wrong, 'does', 'do')} not have rank 0's weights"
    text = (
        f"At the first step, {ranks_text(wrong)} {what}, so the replicas diverge, although each "
        "loss falls. Broadcast rank 0's parameters and buffers before the first step."
    )
    return _found("models-differ", text, guide, wrong)


def _same(one: Weights, other: Weights, names: Sequence[str] | None = None) -> bool:
    return all(close(one[name], other[name], EXACT) for name in names or other)


def _never_moves(seen: Run, guide: str) -> Diagnosis | None:
    if any(len(value["steps"]) > 1 for value in seen) or not all(
        _same(value["weights"], value["steps"][0][1]) for value in seen
    ):
        return None
    text = (
        "No step changes the weights. Clear the gradients before `backward()`, call the "
        "optimizer's step after it, and give the optimizer the parameters of this model, not of a "
        "copy."
    )
    return _found("does-not-learn", text, guide, range(len(seen)))


def _too_few(trained: Sequence[Sequence[int]], samples: int, guide: str) -> Diagnosis | None:
    few = [rank for rank, own in enumerate(trained) if len(own) < EPOCHS * SHARE]
    if not few:
        return None
    text = (
        f"In {EPOCHS} epochs over {samples} samples, rank {few[0]} trains on "
        f"{len(trained[few[0]])}. Its share is {SHARE} samples in each epoch, with the padding: do "
        "not drop samples or batches, and do not leave the loop early."
    )
    return _found("samples-missing", text, guide, few)


def _same_order(trained: Sequence[Sequence[int]], guide: str) -> Diagnosis | None:
    """Recognise epochs that all have the same order, or an order that is not shuffled."""
    ranks = range(len(trained))
    samples = samples_for(len(trained))[0][1].size
    onwards = [[(index - own[0]) % samples for index in own[:SHARE]] for own in trained]
    if all(own == sorted(own) for own in onwards):
        text = (
            "The ranks go over their samples in the order of the dataset. Shuffle the training "
            "samples, with a permutation that depends on the seed and the epoch."
        )
        return _found("not-shuffled", text, guide, ranks)
    if all(own[:SHARE] == own[SHARE : 2 * SHARE] for own in trained):
        text = (
            "Every epoch goes over the samples in the same order. Set the epoch of the sampler "
            "before each pass: 0, 1, 2 and so on."
        )
        return _found("epoch-not-set", text, guide, ranks)
    return None


@dataclass(frozen=True)
class _Steps:
    """What the ranks' steps moved, as gradients: divided by -lr."""

    moved: Sequence[Sequence[Vector]]  # by rank and step
    own: Sequence[Sequence[Vector]]  # by rank and step: the gradient of this rank's samples
    mean: Sequence[Vector]  # by step: the gradient of all ranks' samples


def _steps_of(seen: Run) -> _Steps:
    data = samples_for(len(seen))[0]
    moved, own = [], []
    for value in seen:
        states = [_vector(weights) for _, weights in value["steps"]] + [_vector(value["weights"])]
        moved.append([(before - after) / LEARNING_RATE for before, after in pairwise(states)])
        own.append([_gradient(weights, data, indices) for indices, weights in value["steps"]])
    return _Steps(moved, own, [np.mean(of_ranks, axis=0) for of_ranks in zip(*own, strict=True)])


def _vector(weights: Weights) -> Vector:
    return np.concatenate([weights[name].numpy().reshape(-1) for name in PARAMETERS])


def _model(weights: Weights) -> Classifier:
    model = Classifier(0)
    model.load_state_dict(weights)
    return model


def _losses(model: Classifier, data: Samples, indices: Any) -> Tensor:
    inputs, targets = (torch.from_numpy(part[np.asarray(indices)]) for part in data)
    return nn.functional.cross_entropy(model(inputs), targets, reduction="none")


def _gradient(weights: Weights, data: Samples, indices: Sequence[int]) -> Vector:
    model = _model(weights)
    _losses(model, data, indices).mean().backward()  # type: ignore[no-untyped-call]
    return _vector(
        {name: param.grad for name, param in model.named_parameters() if param.grad is not None}
    )


def _other_steps(seen: Run, headings: Headings) -> Diagnosis | None:
    """Recognise steps that are not those of one process with the same momentum."""
    counts = [len(value["steps"]) for value in seen]
    if len(set(counts)) > 1:
        text = f"The ranks take {listed(counts)} steps. All ranks must take the same number."
        return _found("unequal-shards", text, headings.shares, range(len(seen)))
    sizes = [len(indices) for indices, _ in seen[0]["steps"]]
    if sizes != EPOCHS * [BATCH_SIZE, SHARE - BATCH_SIZE]:
        text = (
            f"Called with batch_size={BATCH_SIZE} and {SHARE} samples for each rank, train takes "
            f"steps of {listed(sizes)} samples on rank 0. Each batch is one step."
        )
        return _found("differs-from-single-process", text, headings.shares, range(len(seen)))
    steps = _steps_of(seen)
    wanted, momentum = _expected(steps)
    ranks = range(len(seen))
    if abs(momentum - 1) < TOLERANCE:
        text = (
            "From the second step on, each step adds the gradients of all earlier steps. Clear the "
            "gradients before each backward."
        )
        return _found("gradients-not-zeroed", text, headings.training, ranks)
    for step, right in enumerate(wanted):
        wrong = [rank for rank in ranks if not _fits(steps.moved[rank][step], right)]
        if wrong and step == 0:
            return _first_step(steps, seen[0]["steps"][0][1], headings)
        if wrong:
            text = (
                f"Until step {step}, training equals that of one process on the samples of all "
                f"ranks; step {step + 1} on {ranks_text(wrong)} does not. Every step must use the "
                "same `lr`, gradients of its own batch alone, averaged over the ranks, and no "
                "weight decay."
            )
            return _found("differs-from-single-process", text, headings.training, wrong)
    return None


def _expected(steps: _Steps) -> tuple[list[Vector], float]:
    """Return one process's steps, and its momentum, which the second step of rank 0 shows.

    SGD may have a momentum, with dampening or in Nesterov's form, as torch defines them.
    """
    first = _factor(steps.moved[0][0], steps.mean[0])
    fresh, momentum, nesterov = 1.0, 0.0, False
    if first is not None and 1 + TOLERANCE < first < 2 - TOLERANCE:
        momentum, nesterov = first - 1, True
    elif len(steps.mean) > 1 and first is not None and abs(first - 1) < TOLERANCE:
        basis = np.stack([steps.mean[1], steps.mean[0]], axis=1)
        fresh, momentum = map(float, np.linalg.lstsq(basis, steps.moved[0][1], rcond=None)[0])
    if not (0 < fresh <= 1 + TOLERANCE and 0 <= momentum <= 1 + TOLERANCE):
        fresh, momentum = 1.0, 0.0
    kept, expected = steps.mean[0], []
    for number, gradient in enumerate(steps.mean):
        kept = momentum * kept + fresh * gradient if number else gradient
        expected.append(gradient + momentum * kept if nesterov else kept)
    return expected, momentum


def _fits(moved: Vector, wanted: Vector) -> bool:
    return bool(np.abs(moved - wanted).max() <= TOLERANCE * np.abs(wanted).max())


def _factor(moved: Vector, wanted: Vector) -> float | None:
    """Return c if the step is c times the wanted one, otherwise None."""
    factor = float(moved @ wanted / (wanted @ wanted))
    return factor if _fits(moved, factor * wanted) else None


def _first_step(steps: _Steps, start: Weights, headings: Headings) -> Diagnosis:
    """Return the mistake in the first step, from weights that are right."""
    moved, own = ([of_rank[0] for of_rank in part] for part in (steps.moved, steps.own))
    return next(_first_steps(moved, own, steps.mean[0], _vector(start), headings))


def _first_steps(
    moved: Sequence[Vector], own: Sequence[Vector], mean: Vector, start: Vector, headings: Headings
) -> Iterator[Diagnosis]:
    size = len(moved)
    ranks = range(size)
    alone = [rank for rank in ranks if _fits(moved[rank], own[rank])]
    right = [rank for rank in ranks if _fits(moved[rank], mean)]
    if len(alone) == size:
        text = (
            "Each rank steps with the gradients of its own samples, so the replicas diverge. "
            "Average the gradients over the ranks between `backward()` and `optimizer.step()`."
        )
        yield _found("gradients-not-synchronised", text, headings.mean, alone)
    if right and {*alone, *right} == {*ranks}:
        text = (
            f"Only {ranks_text(right)} {verb(right, 'steps', 'step')} with the mean of the "
            f"gradients; {ranks_text(alone)} {verb(alone, 'uses', 'use')} the gradients of "
            f"{verb(alone, 'its', 'their')} own samples. Every rank must receive the mean."
        )
        yield _found("only-one-rank-has-it", text, headings.mean, alone)
    source = next((r for r in ranks if all(_fits(one, own[r]) for one in moved)), None)
    if source is not None:
        text = (
            f"Every rank steps with the gradients of rank {source}'s samples. The samples of the "
            "other ranks have no effect: average the gradients over the ranks."
        )
        yield _found("gradients-not-synchronised", text, headings.mean, ranks)
    if all(np.abs(one).max() < TOLERANCE for one in moved):
        text = (
            "The first step does not change the weights: the optimizer does not have the model's "
            "parameters, or it is called without their gradients."
        )
        yield _found("does-not-learn", text, headings.training, ranks)
    yield from _scaled(moved, mean, headings)
    yield from _in_part(moved, own, mean, headings)
    if all(np.abs(np.abs(one) - 1).max() < 0.01 for one in moved):
        text = (
            "In the first step, every weight moves by `lr`, whatever its gradient is, as with "
            "Adam. The exercise asks for SGD."
        )
        yield _found("differs-from-single-process", text, headings.training, ranks)
    if all(_factor(one - mean, start) is not None for one in moved):
        text = (
            "The step also makes the weights smaller, as weight decay does. The exercise asks for "
            "SGD without it."
        )
        yield _found("differs-from-single-process", text, headings.training, ranks)
    wrong = [rank for rank in ranks if rank not in right]
    text = (
        f"The first step on {ranks_text(wrong)} differs from the step of one process on the "
        "samples of all ranks. Check each part of a step: clear the gradients, forward, loss, "
        "backward, average, update."
    )
    yield _found("differs-from-single-process", text, headings.training, wrong)


def _scaled(moved: Sequence[Vector], mean: Vector, headings: Headings) -> Iterator[Diagnosis]:
    """Yield the mistake in steps that all are the same number of times too large."""
    size = len(moved)
    factors = [_factor(one, mean) for one in moved]
    factor = factors[0]
    if factor is None or any(
        f is None or abs(f - factor) > TOLERANCE * abs(factor) for f in factors
    ):
        return
    if abs(factor - size) < TOLERANCE * size:
        text = (
            f"Each step is {size} times too large: the gradients are summed over the {size} ranks "
            f"instead of averaged, or the loss or the learning rate is multiplied by {size}. "
            "Divide the sum by the number of ranks."
        )
        yield _found("sum-not-mean", text, headings.mean, range(size))
    if abs(factor * size - 1) < TOLERANCE:
        text = (
            f"Each step is {size} times too small: the mean of the gradients, or the loss, is "
            f"divided by {size} once more. Divide once."
        )
        yield _found("divided-twice", text, headings.mean, range(size))
    text = (
        f"The first step is {factor:.4g} times the step of one process on the samples of all "
        "ranks. Use the `lr` that train is called with, and the mean of the gradients."
    )
    yield _found("differs-from-single-process", text, headings.training, range(size))


def _in_part(
    moved: Sequence[Vector], own: Sequence[Vector], mean: Vector, headings: Headings
) -> Iterator[Diagnosis]:
    """Yield the mistake in steps that have the mean for some parameters only."""
    local = []
    for name, part in _parts():
        if all(_fits(one[part], mean[part]) for one in moved):
            continue
        if not all(
            _fits(one[part], of_rank[part]) for one, of_rank in zip(moved, own, strict=True)
        ):
            return
        local.append(f"`{name}`")
    text = (
        f"The gradients of {listed(local)} are not averaged: each rank uses its own. Average those "
        "of every trainable parameter."
    )
    yield _found("only-some-parameters", text, headings.mean, range(len(moved)))


def _parts() -> Iterator[tuple[str, slice]]:
    """Yield each parameter's name and place in a vector."""
    start = 0
    for name, param in Classifier(0).named_parameters():
        yield name, slice(start, start + param.numel())
        start += param.numel()


def _other_history(seen: Run, headings: Headings) -> Diagnosis | None:
    """Recognise numbers of the history that are not those of the recorded weights."""
    right, losses, before = _history(seen)
    options = {"guide": headings.training, "evaluation": headings.evaluation}
    return other_means(seen, right, BATCH_SIZE, **options) or other_numbers(
        seen, right, losses, before, **options
    )


def _history(seen: Run) -> tuple[list[dict[str, Any]], list[list[float]], float]:
    """Return the right entries, the losses of each epoch's steps, and the loss before training.

    The entries are as in `support.probes.training.Trained`.
    """
    known, held_out = samples_for(len(seen))
    in_epoch = len(seen[0]["steps"]) // EPOCHS
    states = [weights for _, weights in seen[0]["steps"]] + [seen[0]["weights"]]
    rows, losses = [], []
    with torch.no_grad():
        for epoch in range(EPOCHS):
            numbers = range(epoch * in_epoch, (epoch + 1) * in_epoch)
            steps = [
                _losses(_model(states[k]), known, [i for v in seen for i in v["steps"][k][0]])
                for k in numbers
            ]
            model = _model(states[numbers.stop])
            val_inputs, val_targets = map(torch.from_numpy, held_out)
            val = {
                "val_loss": _losses(model, held_out, range(len(val_targets))).numpy(),
                "val_accuracy": (model(val_inputs).argmax(1) == val_targets).double().numpy(),
            }
            samples = {name: values.tolist() for name, values in val.items()}
            rows.append(
                {
                    "epoch": epoch,
                    "train_loss": float(torch.cat(steps).mean()),
                    **{name: float(values.mean()) for name, values in val.items()},
                    "samples": {**samples, "train_loss": [step.tolist() for step in steps]},
                }
            )
            losses.append([float(step.mean()) for step in steps])
        before = float(_losses(_model(states[0]), held_out, range(len(held_out[1]))).mean())
    return rows, losses, before


def _found(code: str, text: str, guide: str, ranks: Sequence[int]) -> Diagnosis:
    return Diagnosis(code, tuple(ranks), text, guide=guide)
