"""Mistakes in the steps and the history of a training run, recognised by the weights at each step.

A run has a dict for each rank, as `support.probes.training.spied_training` returns it. A step of
SGD moves the weights by `-lr` times a gradient, plus momentum from the second step on. So each step
shows the gradient that the rank used, which is compared with the one of a single process on the
samples of all ranks, at the same weights. Any momentum is right: the first two steps show it.
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
from gradsync.text import counted, listed, ranks_text, verb
from support.probes.training import LEARNING_RATE, Case, Classifier, Samples, Weights
from support.rules.findings import first_of, found
from support.rules.histories import MEAN_OF_MEANS, Run, other_numbers
from support.rules.means import other_means
from support.rules.training import batches_divided, models_differ, not_trained, trained_a_copy

Vector = NDArray[np.float64]  # of all parameters
TOLERANCE = 1e-4  # of a gradient's largest element; gradients may have been sent as float32
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


PHASE1 = Headings(
    training="Training",
    shares="Data loaders",
    epochs="Epochs and evaluation",
    start="Model synchronisation",
    mean="Gradient aggregation",
    evaluation="Epochs and evaluation",
)
PHASE2 = Headings(
    training="Resuming",
    shares="Resumable shares",
    epochs="Resumable shares",
    start="Resuming",
    mean="Buckets and overlap",
    evaluation="Evaluation without padding",
)


def other_training(seen: Run, case: Case, headings: Headings) -> Diagnosis | None:
    """Return the first mistake in the steps of a run, or None if they equal one process's."""
    checks: Sequence[Callable[[], Diagnosis | None]] = (
        lambda: trained_a_copy(seen, [case.before(rank) for rank in case.ranks], headings.training),
        lambda: not_trained(seen, headings.training),
        lambda: _other_start(seen, case, headings.start),
        lambda: other_sizes(seen, case, headings),
        lambda: _other_steps(seen, case, headings),
        lambda: models_differ(seen, headings.start),
    )
    return first_of(checks)


def _other_start(seen: Run, case: Case, guide: str) -> Diagnosis | None:
    """Recognise ranks that do not take their first step from rank 0's weights."""
    before = [case.before(rank) for rank in case.ranks]
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
        return found("wrong-source", text, guide, range(len(seen)))
    if all(_same(starts[rank], before[0], PARAMETERS) for rank in wrong):
        text = (
            f"At the first step, {ranks_text(wrong)} {verb(wrong, 'has', 'have')} rank 0's "
            "parameters, but not its buffers. "
            "Broadcast the buffers too, before the first step."
        )
        return found("buffers-not-broadcast", text, guide, wrong)
    if all(_same(starts[rank], before[rank]) for rank in wrong):
        what = verb(wrong, "still has its own weights", "still have their own weights")
    else:
        what = f"{verb(wrong, 'does', 'do')} not have rank 0's weights"
    text = (
        f"At the first step, {ranks_text(wrong)} {what}, so the replicas diverge, although each "
        "loss falls. Broadcast rank 0's parameters and buffers before the first step."
    )
    return found("models-differ", text, guide, wrong)


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
    return found("does-not-learn", text, guide, range(len(seen)))


def other_sizes(seen: Run, case: Case, headings: Headings) -> Diagnosis | None:
    """Recognise runs whose steps do not have the samples of one batch of each rank."""
    if moves := _never_moves(seen, headings.training):
        return moves
    if divided := batches_divided(seen, case.batch_size, headings.shares):
        return divided
    counts = [len(value["steps"]) for value in seen]
    if len(set(counts)) > 1:
        text = f"The ranks take {listed(counts)} steps. All ranks must take the same number."
        return found("unequal-shards", text, headings.shares, case.ranks)
    sizes = [len(indices) for indices, _ in seen[0]["steps"]]
    if sizes != case.epochs * case.sizes:
        text = (
            f"Called with batch_size={case.batch_size} and {counted(case.share, 'sample')} for "
            f"each rank, train takes steps of {listed(sizes)} samples on rank 0. Each batch is one "
            "step."
        )
        return found("differs-from-single-process", text, headings.shares, case.ranks)
    return None


@dataclass(frozen=True)
class _Steps:
    """What the ranks' steps moved, as gradients: divided by -lr."""

    moved: Sequence[Sequence[Vector]]  # by rank and step
    own: Sequence[Sequence[Vector]]  # by rank and step: the gradient of this rank's samples
    mean: Sequence[Vector]  # by step: the gradient of all ranks' samples


def _steps_of(seen: Run, case: Case) -> _Steps:
    moved, own = [], []
    for value in seen:
        states = [_vector(weights) for _, weights in value["steps"]] + [_vector(value["weights"])]
        moved.append([(before - after) / LEARNING_RATE for before, after in pairwise(states)])
        own.append(
            [_gradient(weights, case.data[0], indices) for indices, weights in value["steps"]]
        )
    return _Steps(moved, own, [np.mean(of_ranks, axis=0) for of_ranks in zip(*own, strict=True)])


def _vector(weights: Weights) -> Vector:
    return np.concatenate([weights[name].numpy().reshape(-1) for name in PARAMETERS])


def _model(weights: Weights) -> Classifier:
    model = Classifier(0)
    model.load_state_dict(weights)
    return model


def _losses(model: Classifier, data: Samples, indices: Any = slice(None)) -> Tensor:
    """Return the loss of each of these samples."""
    inputs, targets = (torch.from_numpy(part[indices]) for part in data)
    return nn.functional.cross_entropy(model(inputs), targets, reduction="none")


def _hits(model: Classifier, data: Samples) -> Tensor:
    """Return 1 for each sample that is classified correctly, and 0 for the others."""
    inputs, targets = map(torch.from_numpy, data)
    hits: Tensor = model(inputs).argmax(1) == targets
    return hits.double()


def _gradient(weights: Weights, data: Samples, indices: Sequence[int]) -> Vector:
    model = _model(weights)
    _losses(model, data, indices).mean().backward()  # type: ignore[no-untyped-call]
    return _vector(
        {name: param.grad for name, param in model.named_parameters() if param.grad is not None}
    )


def _other_steps(seen: Run, case: Case, headings: Headings) -> Diagnosis | None:
    """Recognise steps that are not those of one process with the same momentum."""
    steps = _steps_of(seen, case)
    wanted, momentum = _expected(steps)
    ranks = case.ranks
    if abs(momentum - 1) < TOLERANCE:
        text = (
            "From the second step on, each step adds the gradients of all earlier steps. Clear the "
            "gradients before each backward."
        )
        return found("gradients-not-zeroed", text, headings.training, ranks)
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
            return found("differs-from-single-process", text, headings.training, wrong)
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
        yield found("gradients-not-synchronised", text, headings.mean, alone)
    if right and {*alone, *right} == {*ranks}:
        text = (
            f"Only {ranks_text(right)} {verb(right, 'steps', 'step')} with the mean of the "
            f"gradients; {ranks_text(alone)} {verb(alone, 'uses', 'use')} the gradients of "
            f"{verb(alone, 'its', 'their')} own samples. Every rank must receive the mean."
        )
        yield found("only-one-rank-has-it", text, headings.mean, alone)
    source = next((r for r in ranks if all(_fits(one, own[r]) for one in moved)), None)
    if source is not None:
        text = (
            f"Every rank steps with the gradients of rank {source}'s samples. The samples of the "
            "other ranks have no effect: average the gradients over the ranks."
        )
        yield found("gradients-not-synchronised", text, headings.mean, ranks)
    if all(np.abs(one).max() < TOLERANCE for one in moved):
        text = (
            "The first step does not change the weights: the optimizer does not have the model's "
            "parameters, or it is called without their gradients."
        )
        yield found("does-not-learn", text, headings.training, ranks)
    yield from _scaled(moved, mean, headings)
    yield from _in_part(moved, own, mean, headings)
    if all(np.abs(np.abs(one) - 1).max() < 0.01 for one in moved):
        text = (
            "In the first step, every weight moves by `lr`, whatever its gradient is, as with "
            "Adam. The exercise asks for SGD."
        )
        yield found("differs-from-single-process", text, headings.training, ranks)
    if all(_factor(one - mean, start) is not None for one in moved):
        text = (
            "The step also makes the weights smaller, as weight decay does. The exercise asks for "
            "SGD without it."
        )
        yield found("differs-from-single-process", text, headings.training, ranks)
    wrong = [rank for rank in ranks if rank not in right]
    text = (
        f"The first step on {ranks_text(wrong)} differs from the step of one process on the "
        "samples of all ranks. Check each part of a step: clear the gradients, forward, "
        "cross-entropy of the model's outputs, backward, average, step of SGD with `lr`."
    )
    yield found("differs-from-single-process", text, headings.training, wrong)


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
        yield found("sum-not-mean", text, headings.mean, range(size))
    if abs(factor * size - 1) < TOLERANCE:
        text = (
            f"Each step is {size} times too small: the mean of the gradients, or the loss, is "
            f"divided by {size} once more. Divide once."
        )
        yield found("divided-twice", text, headings.mean, range(size))
    text = (
        f"The first step is {factor:.4g} times the step of one process on the samples of all "
        "ranks. Use the `lr` that train is called with, and the mean of the gradients."
    )
    yield found("differs-from-single-process", text, headings.training, range(size))


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
    yield found("only-some-parameters", text, headings.mean, range(len(moved)))


def _parts() -> Iterator[tuple[str, slice]]:
    """Yield each parameter's name and place in a vector."""
    start = 0
    for name, param in Classifier(0).named_parameters():
        yield name, slice(start, start + param.numel())
        start += param.numel()


def other_history(seen: Run, case: Case, headings: Headings) -> Diagnosis | None:
    """Recognise numbers of the history that are not those of the recorded weights.

    Args:
        seen: a run with steps of the right sizes, and an entry for each epoch.
        case: what the ranks trained.
        headings: the headings of the phase's guide.
    """
    right, others = _history(seen, case)
    options = {"guide": headings.training, "evaluation": headings.evaluation}
    mistake = other_numbers(seen, right, others, **options)
    if mistake is None or not mistake.vague:
        return mistake
    return other_means(seen, right, case.batch_size, **options) or mistake


@torch.no_grad()
def _history(seen: Run, case: Case) -> tuple[list[dict[str, Any]], list[dict[str, float]]]:
    """Return the right entries, and for each epoch numbers that a mistake may give instead.

    The numbers of an entry are the means of the values in its `samples`.
    """
    known, held_out = case.data
    in_epoch = len(case.sizes)
    states = [weights for _, weights in seen[0]["steps"]] + [seen[0]["weights"]]
    before = float(_losses(_model(states[0]), held_out).mean())
    rows, others = [], []
    for epoch in range(case.epochs):
        numbers = range(epoch * in_epoch, (epoch + 1) * in_epoch)
        steps = [
            _losses(_model(states[k]), known, [i for v in seen for i in v["steps"][k][0]])
            for k in numbers
        ]
        model = _model(states[numbers.stop])
        samples = {
            "val_loss": _losses(model, held_out).tolist(),
            "val_accuracy": _hits(model, held_out).tolist(),
            "train_loss": [step.tolist() for step in steps],
        }
        row = {name: float(np.mean(samples[name])) for name in ("val_loss", "val_accuracy")}
        train_loss = float(torch.cat(steps).mean())
        rows.append({"epoch": epoch, "train_loss": train_loss, **row, "samples": samples})
        others.append(
            {
                "the loss before the training": before,
                "the loss of the epoch's first step": float(steps[0].mean()),
                "the loss of the epoch's last step": float(steps[-1].mean()),
                MEAN_OF_MEANS: float(np.mean([float(step.mean()) for step in steps])),
                "the loss over the training samples": float(_losses(model, known).mean()),
                "the accuracy over the training samples": float(_hits(model, known).mean()),
            }
        )
    return rows, others
