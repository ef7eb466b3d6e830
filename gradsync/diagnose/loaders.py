"""Mistakes with the two loaders: of which dataset they are, and what says whose share it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsync.diagnose.shares import Shares, some
from gradsync.records import Diagnosis, Observation
from gradsync.text import ranks_text

GUIDE = "Data loaders"


def other_dataset(train: Shares, val: Shares, first_val: int) -> Diagnosis | None:
    """Judge the samples that each rank's loaders give: those of val are numbered from `first_val`.

    A loader that gives those of the other dataset goes over that, or came back in its place.
    """
    for name, other, shares, strange in (
        ("train", "val", train, [[i for i in share if i >= first_val] for share in train]),
        ("val", "train", val, [[i for i in share if i < first_val] for share in val]),
    ):
        wrong = [rank for rank in range(len(shares)) if strange[rank]]
        if wrong:
            text = (
                f"the {name} loader of {ranks_text(wrong)} gives samples of `{other}_dataset`. "
                "Each loader goes over its own dataset, and the train loader is returned first"
            )
            return _found("samples-missing", wrong, text)
    return None


def share_of_another(case: str, given: int, own: int, other: int, rank: int) -> Diagnosis | None:
    """Judge how many samples a loader gives: as many as its rank's share of the other dataset."""
    if given == own or given != other:
        return None
    text = (
        f"{case} gives {given} samples, where its share is {own}: {given} is that of the other "
        "dataset. A loader's sampler is made from the dataset that the loader goes over"
    )
    return _found("samples-missing", [rank], text)


def past_the_end(seen: Observation, _expected: Any) -> Diagnosis | None:
    """A dataset was asked for what it does not have, by no line of the user's."""
    failure = seen.failure
    if failure is None or failure.exception != "IndexError" or failure.diagnosis.where:
        return None
    text = (
        f"a loader asks its dataset for a sample past its end ({failure.detail}). A loader's "
        "sampler is made from the dataset that the loader goes over, and gives no index beyond it"
    )
    return _found("exception", failure.diagnosis.ranks, text)


def environment_has_a_say(
    plain: Sequence[Shares], told: Sequence[Shares], environ: str
) -> Diagnosis | None:
    """Judge the ranks' shares, train and val, made the same way but under an environment.

    The environment says the same rank and world size to all of them.
    """
    for name, before, under in zip(("train", "val"), plain, told, strict=True):
        if before == under:
            continue
        alike = all(share == under[0] for share in under)
        text = (
            f"with {environ} in os.environ rank 0's {name} loader gives {some(under[0])}, and "
            f"{some(before[0])} without: what says whose share it is are the arguments `rank` and "
            "`world_size` alone"
        )
        code = "same-shard-on-every-rank" if alike else "samples-missing"
        return _found(code, range(len(under)), text)
    return None


def _found(code: str, ranks: Sequence[int], text: str) -> Diagnosis:
    return Diagnosis(code, tuple(ranks), f"{text}", guide=GUIDE)
