"""What an evaluation promises: numbers over the samples of all ranks, and an unchanged model.

`shares` has each rank's inputs (sample, 4), whose losses vary a lot, and targets (sample,), of 3
classes. `is_telling` must hold for them.
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradsync.testing import assert_on_every_rank, by_rank, each, raise_mistake
from gradsync.text import listed
from support.probes.evaluation import Spy, numbers, spied_evaluation, tells_predictions_apart
from support.rules.evaluation import (
    differs_across_ranks,
    evaluated_too_few,
    kept_from_before,
    learned_from,
    mode_not_restored,
    other_keys,
    own_samples_alone,
    pairs,
    predicts_otherwise,
)
from support.rules.means import mean_of_ranks
from support.rules.rounding import rounded
from support.rules.waiting import nobody_waited, raised_before_waiting
from support.rules.wrong_results import ends_with

GUIDE = "Epochs and evaluation"
BATCH = 4
UNASKED = 3  # samples of each dataset that the loader's sampler does not yield


def counts_of(shares):
    """Return how many samples each rank's loader yields."""
    return [len(targets) - UNASKED for _, targets in shares]


def is_telling(shares):
    """Return whether wrong predictions and means of means lead to other numbers."""
    return tells_predictions_apart(
        (x, y) for _, x, y in batches_of(shares)
    ) and no_share_of_samples(evaluated(shares), counts_of(shares))


def batches_of(shares, first=0):
    """Yield every batch that the ranks' loaders yield: the rank, its inputs and its targets.

    Each rank starts at its sample number `first`.
    """
    for rank, share in enumerate(shares):
        end = len(share[1]) - UNASKED + first
        for start in range(first, end, BATCH):
            chosen = slice(start, min(start + BATCH, end))
            x, y = (torch.from_numpy(part[chosen]) for part in share)
            yield rank, x, y


def probe_evaluate(rank, trainer, shares):
    """Evaluate with shares of different sizes; report the result, and how the model was used.

    `again` is the result for another model with the same weights, and other samples.
    """
    data = TensorDataset(*(torch.from_numpy(part) for part in shares[rank]))
    loader = DataLoader(data, BATCH, sampler=range(len(data) - UNASKED))
    other = DataLoader(data, BATCH, sampler=range(UNASKED, len(data)))
    seen = spied_evaluation(rank, lambda spy, loss_fn: trainer.evaluate(spy, loader, loss_fn))
    return seen | {"again": numbers(trainer.evaluate(Spy(), other, nn.CrossEntropyLoss()))}


def evaluated(shares, first=0):
    """Return rows (batch, [rank, loss sum, correct, samples])."""
    model = Spy()
    rows = []
    for rank, x, y in batches_of(shares, first):
        outputs = model(x).detach()
        loss = nn.functional.cross_entropy(outputs, y).item() * len(y)
        rows.append([rank, loss, (outputs.argmax(1) == y).sum().item(), len(y)])
    return np.array(rows)


def metrics(rows):
    loss, correct, samples = rows[:, 1:].sum(0)
    return {"loss": loss / samples, "accuracy": correct / samples, "samples": samples}


def every_sample_counts_the_same(ranks, shares):
    """Check the numbers for unequal shares and small batches, also in a second call."""
    seen = ranks(probe_evaluate, len(shares), shares=by_rank(shares))

    check_results(seen, evaluated(shares))
    again = [value["again"] for value in seen]
    raise_mistake(kept_from_before(again, metrics(evaluated(shares, UNASKED)), GUIDE))


def rank_without_samples(ranks, shares):
    """Check that rank 1, which has no samples, returns the same numbers as the other ranks."""
    early = raised_before_waiting(1, "no sample", GUIDE)
    seen = ranks(probe_evaluate, len(shares), mistakes=[early], shares=by_rank(shares))

    check_results(seen, evaluated(shares))


def check_results(seen, rows):
    raise_mistake(nobody_waited(seen, GUIDE))
    results = each(seen, lambda value: value["result"])
    raise_mistake(other_keys(results, GUIDE))
    expected = metrics(rows)
    counts = [int(rows[rows[:, 0] == rank, 3].sum()) for rank in range(len(seen))]
    own = [metrics(rows[rows[:, 0] == r]) if count else {} for r, count in enumerate(counts)]
    assert_on_every_rank(
        results,
        expected,
        mistakes=[
            own_samples_alone(own, GUIDE),
            mean_of_ranks(own, GUIDE),
            differs_across_ranks(GUIDE),
            *(
                ends_with([wrong] * len(seen), code, f"evaluate {text}", GUIDE)
                for code, text, wrong in known_mistakes(rows, counts)
            ),
            predicts_otherwise(GUIDE),
            rounded("the right one", GUIDE),
        ],
        otherwise=f"evaluate returns {pairs(results[0])} on rank 0. The ranks have "
        f"{listed(counts)} samples, in batches of at most {BATCH}. It should return the loss and "
        "the accuracy over all samples",
    )


def known_mistakes(rows, counts):
    """Return mistakes as (code, the message after "evaluate", the resulting numbers)."""
    right, own = metrics(rows), "differs-from-single-process"
    means = f"averages means, but the ranks have {counts} samples, in batches of at most {BATCH}"
    sizes = right["samples"] + UNASKED * len(counts)
    shrunk = {name: right[name] * right["samples"] / sizes for name in ("loss", "accuracy")}
    return [
        *(("mean-of-means", f"{means}. Use sums.", m) for m in means_of_means(rows, counts)),
        (
            "mean-of-means",
            "adds up the mean losses of the batches and divides by the number of samples. Multiply "
            "each batch's mean by its number of samples first.",
            {**right, "loss": (rows[:, 1] / rows[:, 3]).sum() / right["samples"]},
        ),
        (
            own,
            f"counts {sizes:g} samples, the size of the datasets. Count the samples that the "
            "loaders yield.",
            {**shrunk, "samples": sizes},
        ),
        (
            own,
            f"counts {BATCH * len(rows)} samples, as if every batch were full. The last batch of a "
            "rank may be smaller: count the samples in each batch.",
            full_batches(rows),
        ),
        (
            own,
            f"weights the mean loss of each batch by {BATCH}, as if every batch were full, and "
            f"divides by {right['samples']:g} samples. The last batch of a rank may be smaller: "
            "weight each batch by its number of samples.",
            {**right, "loss": (rows[:, 1] / rows[:, 3]).sum() * BATCH / right["samples"]},
        ),
        (
            own,
            "returns the largest sum of a rank, divided by the largest count. An all-reduce has "
            "several operations; use the sum.",
            largest_sums(rows),
        ),
    ]


def full_batches(rows):
    """Return the numbers that result from counting the batch size for each batch."""
    full = np.full(len(rows), BATCH)
    return metrics(np.stack([rows[:, 0], rows[:, 1] / rows[:, 3] * full, rows[:, 2], full], 1))


def largest_sums(rows):
    """Return the numbers that result from the largest of the ranks' sums."""
    sums = [rows[rows[:, 0] == rank].sum(0) for rank in np.unique(rows[:, 0])]
    return metrics(np.max(sums, axis=0)[None])


def means_of_means(rows, counts):
    """Yield the numbers that result from averaging the means of batches or of ranks.

    The loss is wrong, or the accuracy, or both.
    """
    right = metrics(rows)
    having = [metrics(rows[rows[:, 0] == rank]) for rank, count in enumerate(counts) if count]
    loss, accuracy = means_of_batches(rows)
    candidates = [{"loss": loss, "accuracy": accuracy}]
    for number in (len(having), len(counts)):
        candidates.append({k: sum(m[k] for m in having) / number for k in ("loss", "accuracy")})
    batches = [means_of_batches(rows[rows[:, 0] == rank]) for rank, n in enumerate(counts) if n]
    for weights in ([n for n in counts if n], np.ones(len(having))):
        loss, accuracy = np.average(batches, axis=0, weights=weights)
        candidates.append({"loss": loss, "accuracy": accuracy})
    for means in candidates:
        yield {**right, **means}
        for name, mean in means.items():
            yield {**right, name: mean}


def no_share_of_samples(rows, counts):
    """Return whether every mean of means differs from each possible wrong accuracy."""
    means = {round(mean["accuracy"], 9) for mean in means_of_means(rows, counts)}
    total = rows[:, 3].sum()
    wrong = means - {round(metrics(rows)["accuracy"], 9)}
    return not any(abs(mean * total - round(mean * total)) < 1e-6 for mean in wrong)


def means_of_batches(rows):
    """Return the mean over batches of their mean losses, and of their accuracies."""
    return (rows[:, 1:3] / rows[:, 3:]).mean(0)


def model_unchanged(ranks, shares):
    """Check for evaluation mode, no gradient tracking, and gradients that are left alone."""
    seen = ranks(probe_evaluate, len(shares), shares=by_rank(shares))

    raise_mistake(evaluated_too_few(seen, counts_of(shares), GUIDE))
    raise_mistake(learned_from(seen, GUIDE))


def former_mode_restored(ranks, shares):
    """Check that the model is in the mode that it had before, training or evaluation."""
    seen = ranks(probe_evaluate, len(shares), shares=by_rank(shares))

    raise_mistake(evaluated_too_few(seen, counts_of(shares), GUIDE))
    raise_mistake(mode_not_restored(seen, GUIDE))
