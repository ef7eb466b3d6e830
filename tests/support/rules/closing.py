"""The check of `gradsync train`: mistakes in the small run at its end, and in the trained model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradsync.records import Diagnosis
from gradsync.testing.values import close
from gradsync.text import ranks_text
from support.probes.closing import EPOCHS, SHARE, case_for
from support.probes.training import Weights
from support.rules.epochs import (
    order_of_another_epoch,
    other_epochs,
    other_shares,
    trained_on_others,
)
from support.rules.findings import first_of, found
from support.rules.histories import Run, other_rows
from support.rules.one_process import Headings, other_history, other_training
from support.rules.training import not_trained, other_counts

MANY_STEPS = 10_000.0  # roundings (see `close`), 0.1 % of the largest weight


def closing_mistake(seen: Run, headings: Headings) -> Diagnosis | None:
    """Return the first mistake in a run of all ranks, or None if it equals one process's."""
    case = case_for(len(seen))
    samples = len(case.data[0][1])
    trained = [value["trained"] for value in seen]
    checks: Sequence[Callable[[], Diagnosis | None]] = (
        lambda: trained_on_others(seen, headings.shares),
        lambda: not_trained(seen, headings.training),
        lambda: other_epochs(trained, EPOCHS, samples, headings.training),
        lambda: _too_few(trained, samples, headings.shares),
        lambda: other_shares(
            [own[:SHARE] for own in trained],
            max(map(len, trained)) // EPOCHS,
            samples,
            headings.shares,
        ),
        lambda: other_counts(seen, EPOCHS * SHARE, headings.shares),
        lambda: _same_order(trained, samples, headings.epochs),
        lambda: order_of_another_epoch(seen, headings.epochs),
        lambda: other_training(seen, case, headings),
        lambda: other_rows(seen, headings.training),
        lambda: other_history(seen, case, headings),
    )
    return first_of(checks)


def different_weights(models: Sequence[Weights], guide: str) -> Diagnosis | None:
    """Recognise ranks whose trained models differ by more than a different order of additions."""
    wrong = [rank for rank, own in enumerate(models) if not close(own, models[0], MANY_STEPS)]
    if not wrong:
        return None
    text = (
        f"After training, the weights of {ranks_text(wrong)} differ from rank 0's. All ranks must "
        "start from rank 0's weights and take the same steps, in every epoch."
    )
    return found("models-differ", text, guide, wrong)


def _too_few(trained: Sequence[Sequence[int]], samples: int, guide: str) -> Diagnosis | None:
    few = [rank for rank, own in enumerate(trained) if len(own) < EPOCHS * SHARE]
    if not few:
        return None
    text = (
        f"In {EPOCHS} epochs over {samples} samples, rank {few[0]} trains on "
        f"{len(trained[few[0]])}. Its share is {SHARE} samples in each epoch, with the padding: do "
        "not drop samples or batches, and do not leave the loop early."
    )
    return found("samples-missing", text, guide, few)


def _same_order(trained: Sequence[Sequence[int]], samples: int, guide: str) -> Diagnosis | None:
    """Recognise epochs that all have the same order, or an order that is not shuffled."""
    ranks = range(len(trained))
    onwards = [[(index - own[0]) % samples for index in own[:SHARE]] for own in trained]
    if all(own == sorted(own) for own in onwards):
        text = (
            "The ranks go over their samples in the order of the dataset. Shuffle the training "
            "samples, with a permutation that depends on the seed and the epoch."
        )
        return found("not-shuffled", text, guide, ranks)
    if all(own[:SHARE] == own[SHARE : 2 * SHARE] for own in trained):
        text = (
            "Every epoch goes over the samples in the same order. Set the epoch of the sampler "
            "before each pass: 0, 1, 2 and so on."
        )
        return found("epoch-not-set", text, guide, ranks)
    return None
