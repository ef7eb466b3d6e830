"""Mistakes in any sampler: its epochs, seeds, random states and refusals of bad arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradsync.records import Diagnosis
from gradsync.text import counted, full_stop, listed
from support.rules.findings import found
from support.rules.shares import some

BAD_ARGUMENTS = (  # the bad argument; samples, num_replicas, rank, shuffle
    ("num_replicas", 10, 0, 0, True),
    ("num_replicas", 10, -1, 0, True),
    ("rank", 10, 4, 4, True),
    ("rank", 10, 4, -1, True),
    ("dataset", 0, 4, 0, True),
    ("dataset", 0, 4, 0, False),
)


def not_shuffled(order: Sequence[int], guide: str) -> Diagnosis | None:
    """Recognise a pass with `shuffle` that yields the samples in the dataset's order."""
    if list(order) != sorted(order):
        return None
    text = f"`shuffle` is on, but the samples come in the order {some(order)}."
    return found("not-shuffled", text, guide)


def process_has_a_say(seen: Sequence[Any], guide: str) -> Diagnosis | None:
    """Recognise orders that differ between processes with different global states."""
    differing = [rank for rank, orders in enumerate(seen) if orders != seen[0]]
    if not differing:
        return None
    text = (
        "The same seed and epoch give a different permutation in each process, so the ranks' "
        "shares overlap and leave out samples. The permutation must depend only on (seed, epoch), "
        "and not on the global random state, the time or the hash of a string."
    )
    return found("shuffle-differs-across-ranks", text, guide, differing)


def order_depends_on_world_size(
    orders: Mapping[int, Sequence[int]], guide: str
) -> Diagnosis | None:
    """Recognise a permutation that depends on the number of ranks.

    Args:
        orders: by number of ranks, the order from which their shares are cut.
        guide: the heading of GUIDELINES.md.
    """
    (few, first), *others = orders.items()
    for many, order in others:
        if order != first:
            text = (
                f"With the same seed and epoch, the order is {some(first)} on {few} ranks and "
                f"{some(order)} on {many} ranks. The permutation must depend only on (seed, "
                "epoch), or a training run that resumes with a different number of ranks "
                "repeats samples and misses others. Draw the permutation of all samples without "
                "`num_replicas`."
            )
            return found("shuffle-differs-across-ranks", text, guide)
    return None


def few_samples(order: Sequence[int], guide: str) -> Diagnosis | None:
    """Recognise a pass that repeats a few samples instead of going through all of them."""
    if len(set(order)) * 2 > len(order):
        return None
    text = (
        f"A pass yields {some(order)}, which is only {counted(len(set(order)), 'sample')}. Each "
        "sample must come once, except in the padding."
    )
    return found("samples-missing", text, guide)


def epoch_ignored(passes: Sequence[Sequence[int]], guide: str) -> Diagnosis | None:
    """Recognise passes (see `support.probes.sampling`) that do not fit their epochs."""
    fresh, zero, one, two, again, repeated, beside = passes
    if len(repeated) < len(again):
        text = (
            f"A second pass without `set_epoch` yields {len(repeated)} indices, but the first "
            f"yields {len(again)}. Each pass must start from the beginning, even without "
            "`set_epoch`: nothing calls it for a validation loader."
        )
        return found("samples-missing", text, guide)
    for holds, text in (
        (
            zero != one and one != two and zero != two,
            "Two of the epochs 0, 1 and 2 go through the samples in the same order. Each epoch "
            "must have its own permutation, with every seed, also 0. Is it drawn in each pass, "
            "and does it depend on the number that `set_epoch` sets, whatever the seed is?",
        ),
        (
            zero == again,
            "After `set_epoch(0)`, the order differs from the order after an earlier "
            "`set_epoch(0)`. It must depend only on the seed and the epoch, not on earlier passes.",
        ),
        (
            fresh == zero,
            "A new sampler does not go through the samples in the order of epoch 0. Epochs count "
            "from 0, and a new sampler is at epoch 0.",
        ),
        (
            again == repeated,
            "A second pass without `set_epoch` has a different order from the first. The order "
            "must depend only on the seed and the epoch that was set last.",
        ),
        (
            again == beside,
            "After `set_epoch` on one sampler, the order of another sampler changes. Each sampler "
            "must have its own epoch: store it in the object.",
        ),
    ):
        if not holds:
            return found("epoch-ignored", text, guide)
    return None


def seed_ignored(orders: Sequence[Any], epoch: int, guide: str) -> Diagnosis | None:
    """Recognise orders of an epoch that are the same with different seeds."""
    if all(one != other for n, one in enumerate(orders) for other in orders[:n]):
        return None
    text = (
        f"Different seeds give the same permutation of epoch {epoch}. A different seed must give "
        "a different permutation."
    )
    return found("seed-ignored", text, guide)


def other_seed_by_default(by_default: Any, of_seed_0: Any, guide: str) -> Diagnosis | None:
    """Recognise a sampler that does not have the order of seed 0 by default."""
    if by_default == of_seed_0:
        return None
    text = "Without `seed`, the order differs from the order of seed 0. The default `seed` is 0."
    return found("seed-ignored", text, guide)


def random_state_touched(
    during: Sequence[str], touched: Sequence[str], guide: str
) -> Diagnosis | None:
    """Recognise a pass that changes the global random state of libraries, at least for a time."""
    if touched:
        text = (
            f"A pass changes the global random state of {listed(touched)}. Then the random numbers "
            "that the model draws next (dropout, augmentation) depend on the sampler. Use a "
            "separate generator."
        )
        return found("global-rng-touched", text, guide)
    if during:
        text = (
            f"The global random state of {listed(during)} is changed during a pass and restored "
            "only at its end. Then the random numbers drawn between two indices (dropout, "
            "augmentation) depend on the sampler, and are drawn again later. Use a separate "
            "generator, or restore the state before you yield an index."
        )
        return found("global-rng-touched", text, guide)
    return None


def refused_wrongly(sampler: str, answers: Sequence[Any], guide: str) -> Diagnosis | None:
    """Recognise a bad argument that does not raise a ValueError that names it."""
    for case, answer in zip(BAD_ARGUMENTS, answers, strict=True):
        name, samples, num_replicas, rank, shuffle = case
        if answer is not None and answer[0] and name in answer[2]:
            continue
        got = f"raises {full_stop(f'{answer[1]}: {answer[2]}')}" if answer else "raises no error."
        text = (
            f"{sampler} over {samples} samples with num_replicas={num_replicas}, rank={rank}, "
            f"shuffle={shuffle} {got} It must raise a ValueError whose message contains {name!r}."
        )
        return found("bad-arguments-accepted", text, guide)
    return None
