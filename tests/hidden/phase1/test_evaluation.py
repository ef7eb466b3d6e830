"""What a model is evaluated to, over all ranks' samples, and that nothing is learned from it."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradsync.diagnose.values import close
from gradsync.records import Diagnosis
from gradsync.testing import assert_on_every_rank, by_rank, check, each, exercise, would_be

GUIDE = "Epochs and evaluation"
BATCH = 4
UNASKED = 3  # samples of each dataset that the loader's sampler leaves out


class Spy(nn.Module):
    """A linear classifier of float64 that notes how it was called."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(4, 3).double()
        self.calls = []

    def forward(self, inputs):
        self.calls.append((self.training, torch.is_grad_enabled()))
        return self.layer(inputs)


def draw(rng, counts):
    """Return, by rank, inputs (sample, 4) and targets (sample,): the losses vary a lot."""
    counts = [count + UNASKED for count in counts]
    return [(rng.standard_normal((n, 4)) * 5, rng.integers(0, 3, n)) for n in counts]


def probe_evaluate(rank, trainer, shares):
    """Evaluate with rank-dependent shares; say what it returned, and did to the model."""
    model = Spy().train(rank != 1)
    model.layer.weight.grad = torch.full((3, 4), 2.0).double()
    data = TensorDataset(*(torch.from_numpy(part) for part in shares[rank]))
    loader = DataLoader(data, BATCH, sampler=range(len(data) - UNASKED))
    result = trainer.evaluate(model, loader, nn.CrossEntropyLoss())
    weight, bias = model.layer.weight, model.layer.bias
    kept = weight.grad is not None and bool((weight.grad == 2).all()) and bias.grad is None
    return {
        "result": {name: float(value) for name, value in dict(result).items()},
        "calls": [list(call) for call in model.calls],
        "kept_mode": [m.training for m in (model, model.layer)] == [rank != 1] * 2,
        "kept_grad": kept,
    }


def evaluated(shares):
    """Return rows (batch, [rank, loss sum, correct, samples])."""
    model = Spy()
    rows = []
    for rank, share in enumerate(shares):
        for start in range(0, len(share[1]) - UNASKED, BATCH):
            asked = slice(start, min(start + BATCH, len(share[1]) - UNASKED))
            x, y = (torch.from_numpy(part[asked]) for part in share)
            outputs = model(x).detach()
            loss = nn.functional.cross_entropy(outputs, y).item() * len(y)
            rows.append([rank, loss, (outputs.argmax(1) == y).sum().item(), len(y)])
    return np.array(rows)


def metrics(rows):
    loss, correct, samples = rows[:, 1:].sum(0)
    return {"loss": loss / samples, "accuracy": correct / samples, "samples": samples}


@exercise("phase1/evaluate", points=2.5)
def test_ranks_and_batches_weigh_by_their_samples(ranks, rng):
    """Sums over all ranks: of unequal shares, and smaller last batches."""
    shares = draw(rng, [11, 2, 5, 6])

    seen = ranks(probe_evaluate, 4, shares=by_rank(shares))

    hold_results(seen, evaluated(shares))


@exercise("phase1/evaluate", points=1)
def test_a_rank_may_have_nothing(ranks, rng):
    """A rank without a single sample has the same numbers as the others."""
    shares = draw(rng, [3, 0, 9])

    seen = ranks(probe_evaluate, 3, shares=by_rank(shares))

    hold_results(seen, evaluated(shares))


def hold_results(seen, rows):
    results = each(seen, lambda value: value["result"])
    check(
        all(set(result) == {"loss", "accuracy", "samples"} for result in results),
        "wrong-signature",
        f"evaluate returns the keys {sorted(results[0])}: loss, accuracy and samples are wanted "
        f"(GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )
    expected = metrics(rows)
    counts = [int(rows[rows[:, 0] == rank, 3].sum()) for rank in range(len(seen))]
    assert_on_every_rank(
        results,
        expected,
        mistakes=[
            differs_across_ranks,
            *(
                would_be([wrong] * len(seen), code, f"evaluate {text}", GUIDE)
                for code, text, wrong in known_mistakes(rows, counts)
            ),
        ],
        otherwise=f"evaluate returns {told(results[0])} on rank 0, where the ranks have "
        f"{', '.join(map(str, counts))} samples in batches of at most {BATCH}: that is not loss "
        "and accuracy over all samples",
    )


def told(result):
    return ", ".join(f"{name} {value:.4g}" for name, value in result.items())


def differs_across_ranks(seen, expected):
    if all(close(result, seen[0]) for result in seen):
        return None
    shown = f"{told(seen[0])} on rank 0 and {told(seen[1])} on rank 1"
    if close(seen[0], expected[0]):
        text = f"rank 0 alone has the numbers of all ranks: evaluate returns {shown}"
        others = tuple(range(1, len(seen)))
        text += f". Every rank is to have them (GUIDELINES, {GUIDE})"
        return Diagnosis("only-one-rank-has-it", others, text, guide=GUIDE)
    text = f"evaluate returns other numbers on other ranks, {shown}: sum over all ranks"
    ranks = tuple(range(len(seen)))
    return Diagnosis("loss-is-local", ranks, f"{text} (GUIDELINES, {GUIDE})", guide=GUIDE)


def known_mistakes(rows, counts):
    """Return mistakes as (code, what shows it, the numbers that it makes)."""
    right, own = metrics(rows), "differs-from-single-process"
    means = f"averages means, though the ranks have {counts} samples, in batches of at most {BATCH}"
    sizes = right["samples"] + UNASKED * len(counts)
    shrunk = {name: right[name] * right["samples"] / sizes for name in ("loss", "accuracy")}
    odd = f"returns an accuracy that is no share from 0 to 1 of {right['samples']:g} samples, but "
    return [
        *(("mean-of-means", f"{means}. Sums weigh right", m) for m in means_of_means(rows, counts)),
        (
            "mean-of-means",
            "adds up the mean losses of batches and divides by the samples: a batch's mean counts "
            "for all its samples",
            {**right, "loss": (rows[:, 1] / rows[:, 3]).sum() / right["samples"]},
        ),
        (
            own,
            f"counts {sizes:g} samples, the size of the datasets: what counts is what the loaders "
            "gave",
            {**shrunk, "samples": sizes},
        ),
        (own, odd + "a percentage", {**right, "accuracy": 100 * right["accuracy"]}),
        (own, odd + "the number of hits", {**right, "accuracy": rows[:, 2].sum()}),
    ]


def means_of_means(rows, counts):
    """Yield the numbers of those who average batches, or ranks: the loss alone, or both."""
    right = metrics(rows)
    having = [metrics(rows[rows[:, 0] == rank]) for rank, count in enumerate(counts) if count]
    loss, accuracy = (rows[:, 1:3] / rows[:, 3:]).mean(0)
    candidates = [{"loss": loss, "accuracy": accuracy}]
    for number in (len(having), len(counts)):
        candidates.append({k: sum(m[k] for m in having) / number for k in ("loss", "accuracy")})
    for means in candidates:
        yield {**right, **means}
        yield {**right, "loss": means["loss"]}


def hold_model_was_run(calls):
    """Hold the model to have been run: what is left alone else is told of no evaluation."""
    check(
        len(calls) > 0,
        "differs-from-single-process",
        "evaluate returned without having run the model on any rank: what comes out of it is to be "
        f"measured on the samples (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )


@exercise("phase1/evaluate", points=1.5)
def test_nothing_is_learned_from_it(ranks, rng):
    """It runs in evaluation mode, without gradients, and leaves those there are alone."""
    seen = ranks(probe_evaluate, 2, shares=by_rank(draw(rng, [5, 3])))

    calls = [call for value in seen for call in value["calls"]]
    hold_model_was_run(calls)
    check(
        not any(training for training, _ in calls),
        "mode-not-restored",
        "evaluate runs the model in training mode, in which dropout and BatchNorm do not do what "
        f"they do in use (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )
    check(
        not any(enabled for _, enabled in calls),
        "gradients-touched",
        "evaluate runs the model with gradients tracked: nothing is learned from it, and the "
        f"memory that they take is wasted (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )
    changed = [rank for rank in range(2) if not seen[rank]["kept_grad"]]
    check(
        not changed,
        "gradients-touched",
        "after evaluate the parameters have other gradients than before: they belong to the "
        f"training, and stay as they are (GUIDELINES, {GUIDE})",
        ranks=changed,
        guide=GUIDE,
    )


@exercise("phase1/evaluate", points=2)
def test_the_former_mode_is_put_back(ranks, rng):
    """A model in training mode is in it afterwards, one in evaluation mode too."""
    seen = ranks(probe_evaluate, 2, shares=by_rank(draw(rng, [5, 3])))

    hold_model_was_run([call for value in seen for call in value["calls"]])
    wrong = [rank for rank in range(2) if not seen[rank]["kept_mode"]]
    was = " and ".join(f"rank {r} ({'training' if r != 1 else 'evaluation'})" for r in wrong)
    check(
        not wrong,
        "mode-not-restored",
        f"after evaluate the model is not in the mode that it came in, on {was} "
        f"(GUIDELINES, {GUIDE})",
        ranks=wrong,
        guide=GUIDE,
    )
