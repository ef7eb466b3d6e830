"""Mistakes of a sampler, however it deals out: epochs, seeds, random states, bad arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradsync.diagnose.shares import some
from gradsync.records import Diagnosis
from gradsync.text import counted

BAD_ARGUMENTS = (  # the one that can't be; samples, num_replicas, rank, shuffle
    ("num_replicas", 10, 0, 0, True),
    ("num_replicas", 10, -1, 0, True),
    ("rank", 10, 4, 4, True),
    ("rank", 10, 4, -1, True),
    ("dataset", 0, 4, 0, True),
    ("dataset", 0, 4, 0, False),
)


def not_shuffled(order: Sequence[int], guide: str) -> Diagnosis | None:
    """What a pass with `shuffle` yields is in the samples' own order."""
    if list(order) != sorted(order):
        return None
    text = f"`shuffle` is on, and yet the samples come in the order {some(order)}"
    return _found("not-shuffled", text, guide)


def process_has_a_say(seen: Sequence[Any], guide: str) -> Diagnosis | None:
    """Processes that differ in their global state worked out different orders, one each."""
    differing = [rank for rank, orders in enumerate(seen) if orders != seen[0]]
    if not differing:
        return None
    text = (
        "the same seed and epoch gave another permutation in another process, so the ranks' "
        "shares overlap and leave samples out: something besides (seed, epoch) has a say, such "
        "as the global random state, the time or the hash of a text"
    )
    return _found("shuffle-differs-across-ranks", text, guide, differing)


def world_size_has_a_say(orders: Mapping[int, Sequence[int]], guide: str) -> Diagnosis | None:
    """The same seed and epoch give another permutation to another number of ranks.

    Args:
        orders: by number of ranks, the order that their shares are cut from.
        guide: the heading of GUIDELINES.md.
    """
    (few, first), *others = orders.items()
    for many, order in others:
        if order != first:
            text = (
                f"with the same seed and epoch the order is {some(first)} on {few} ranks and "
                f"{some(order)} on {many}. The permutation depends on (seed, epoch) alone. A "
                "training that goes on with another number of ranks would repeat samples and miss "
                "others. Draw the permutation of all samples without `num_replicas`"
            )
            return _found("shuffle-differs-across-ranks", text, guide)
    return None


def few_samples(order: Sequence[int], guide: str) -> Diagnosis | None:
    """A pass that has no repeats but in the padding goes through few samples again and again."""
    if len(set(order)) * 2 > len(order):
        return None
    text = (
        f"a pass yields {some(order)}: that is {counted(len(set(order)), 'sample')} over and over, "
        "where each is to come once but for the padding"
    )
    return _found("samples-missing", text, guide)


def epoch_ignored(passes: Sequence[Sequence[int]], guide: str) -> Diagnosis | None:
    """Passes, those of `passes_of_epochs` in `gradsync.probes`, are not those of their epoch."""
    fresh, zero, one, two, again, repeated, beside = passes
    if len(repeated) < len(again):
        text = (
            f"a second pass without `set_epoch` yields {len(repeated)} indices, the first "
            f"{len(again)}: each pass has to begin anew, as a validation loader's passes do"
        )
        return _found("samples-missing", text, guide)
    for holds, text in (
        (
            zero != one and one != two and zero != two,
            "two of the epochs 0, 1 and 2 go through the samples in the same order: `set_epoch` "
            "has to give each epoch a permutation of its own",
        ),
        (
            zero == again,
            "after `set_epoch(0)` the order is another one the second time: it has to depend on "
            "the seed and the epoch that was set, not on what came before",
        ),
        (
            fresh == zero,
            "a new sampler does not go through the samples as after `set_epoch(0)`: epochs count "
            "from 0, and a new sampler is at epoch 0",
        ),
        (
            again == repeated,
            "a second pass without `set_epoch` goes through the samples in another order than the "
            "first: it has to depend on the seed and the epoch that was set last",
        ),
        (
            again == beside,
            "after `set_epoch` of another sampler the order is another one: the samplers share "
            "their epoch, where each has to have its own",
        ),
    ):
        if not holds:
            return _found("epoch-ignored", text, guide)
    return None


def seed_ignored(orders: Sequence[Any], epoch: int, guide: str) -> Diagnosis | None:
    """Of an epoch's orders with different seeds, two are the same."""
    if all(one != other for n, one in enumerate(orders) for other in orders[:n]):
        return None
    text = (
        f"different seeds gave the same permutation of epoch {epoch}: another seed has to give "
        "another"
    )
    return _found("seed-ignored", text, guide)


def other_seed_by_default(by_default: Any, of_seed_0: Any, guide: str) -> Diagnosis | None:
    """The order of a sampler that was given no seed is not that of seed 0."""
    if by_default == of_seed_0:
        return None
    text = "a sampler that is given no seed has another order than one of seed 0, the default"
    return _found("seed-ignored", text, guide)


def random_state_touched(
    during: Sequence[str], touched: Sequence[str], guide: str
) -> Diagnosis | None:
    """The global random state of these libraries is another one during a pass, or after it."""
    if touched:
        text = (
            f"the global random state of {_and(touched)} is another one after a pass: whatever "
            "your model draws next (dropout, augmentation) would depend on the sampler"
        )
        return _found("global-rng-touched", text, guide)
    if during:
        text = (
            f"the global random state of {_and(during)} is another one while a pass goes on, and "
            "is put back at its end: whatever the training draws between two indices (dropout, "
            "augmentation) would depend on the sampler, and be forgotten. It has to be put back "
            "before an index is given out"
        )
        return _found("global-rng-touched", text, guide)
    return None


def _and(names: Sequence[str]) -> str:
    return " and ".join(map(str, names))


def refused_wrongly(sampler: str, answers: Sequence[Any], guide: str) -> Diagnosis | None:
    """One of the bad arguments did not end in a ValueError that names it."""
    for case, answer in zip(BAD_ARGUMENTS, answers, strict=True):
        name, samples, num_replicas, rank, shuffle = case
        if answer is not None and answer[0] and name in answer[2]:
            continue
        got = f"{answer[1]}: {answer[2]}" if answer else "no error at all"
        text = (
            f"{sampler} over {samples} samples with num_replicas={num_replicas}, rank={rank}, "
            f"shuffle={shuffle} gave {got}: a ValueError that says {name!r} is wanted"
        )
        return _found("bad-arguments-accepted", text, guide)
    return None


def _found(code: str, text: str, guide: str, ranks: Sequence[int] = ()) -> Diagnosis:
    return Diagnosis(code, tuple(ranks), f"{text}", guide=guide)
