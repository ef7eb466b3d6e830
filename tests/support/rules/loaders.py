"""Mistakes with the two loaders: the wrong dataset, or shares that depend on the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from gradsync.records import Diagnosis, Observation
from gradsync.testing import seen_of
from gradsync.text import full_stop, ranks_text
from support.rules.findings import found
from support.rules.shares import Shares, some

GUIDE = "Data loaders"
REFUSED = re.compile(r"num_replicas|rank")


def other_dataset(train: Shares, val: Shares, first_val: int) -> Diagnosis | None:
    """Judge the samples that each rank's loaders yield: val samples are numbered from `first_val`.

    A loader with samples of the other dataset uses that dataset, or the two loaders are swapped.
    """
    for name, other, shares, strange in (
        ("train", "val", train, [[i for i in share if i >= first_val] for share in train]),
        ("val", "train", val, [[i for i in share if i < first_val] for share in val]),
    ):
        wrong = [rank for rank in range(len(shares)) if strange[rank]]
        if wrong:
            text = (
                f"The {name} loader of {ranks_text(wrong)} yields samples of `{other}_dataset`. "
                "Each loader must use its own dataset, and the train loader is returned first."
            )
            return found("samples-missing", text, GUIDE, wrong)
    return None


def everything_loaded(
    case: str, ranks: Sequence[int], seen: Any, again: Callable[[], Observation]
) -> Diagnosis:
    """Judge loaders that yield all samples of their dataset, although there are several ranks.

    Args:
        case: what they do.
        ranks: the ranks with such a loader.
        seen: the samples that the loaders yielded.
        again: makes the loaders in a process group.
    """
    in_group = seen_of(again)
    if in_group.failure is None and _count(in_group[0]) != _count(seen):
        text = (
            f"{case} if no process group exists, and its share if there is one. create_dataloaders "
            "must also work before a group exists: decide by the argument `world_size`, and not by "
            "the group, whether to use a sampler."
        )
    else:
        text = f"{case}. Use a sampler, so that each rank gets its share."
    return found("sampler-not-used", text, GUIDE, ranks)


def _count(samples: Any) -> int:
    return sum(map(_count, samples)) if isinstance(samples, list) else 1


def share_of_other_dataset(
    case: str, given: int, own: int, other: int, rank: int
) -> Diagnosis | None:
    """Judge whether a loader yields as many samples as the rank's share of the other dataset."""
    if given == own or given != other:
        return None
    text = (
        f"{case} yields {given} samples, which is the size of its share of the other dataset. Its "
        f"own share has {own}. Create a loader's sampler from the dataset of the loader."
    )
    return found("samples-missing", text, GUIDE, [rank])


def index_past_the_end(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise an index past a dataset's end that no line of the user's code asks for."""
    failure = seen.failure
    if failure is None or failure.exception != "IndexError" or failure.diagnosis.where:
        return None
    text = (
        f"A loader asks its dataset for a sample past the end ({failure.detail}). Create the "
        "loader's sampler from the dataset of the loader, and yield only indices of that dataset."
    )
    return found("exception", text, GUIDE, failure.diagnosis.ranks)


def sampler_refused(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise arguments that the submission's own sampler refuses."""
    failure = seen.failure
    named = REFUSED.search((failure and failure.detail) or "")
    if failure is None or failure.exception != "ValueError" or named is None:
        return None
    text = (
        f"create_dataloaders passes a wrong `{named[0]}` to a sampler, which refuses it: "
        f"{full_stop(named.string)} Are `world_size` and `rank` swapped? The sampler takes the "
        "dataset, `num_replicas` and `rank`, in this order: pass the last two by name."
    )
    return Diagnosis(
        "wrong-signature", failure.diagnosis.ranks, text, failure.diagnosis.where, GUIDE
    )


def shares_depend_on_environment(
    plain: Sequence[Shares], changed: Sequence[Shares], environ: str
) -> Diagnosis | None:
    """Judge the ranks' shares, train and val, without and with environment variables.

    The variables give the same rank and world size to all ranks.
    """
    for name, before, under in zip(("train", "val"), plain, changed, strict=True):
        if before == under:
            continue
        alike = all(share == under[0] for share in under)
        text = (
            f"With {environ} in os.environ, rank 0's {name} loader yields {some(under[0])}, and "
            f"without them {some(before[0])}. A share must depend only on the arguments `rank` and "
            "`world_size`."
        )
        code = "same-shard-on-every-rank" if alike else "samples-missing"
        return found(code, text, GUIDE, range(len(under)))
    return None
