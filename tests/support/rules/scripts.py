"""Mistakes in the output of the data loader's file as a program: the shares, and a verdict."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gradsync.ranks.failures.exceptions import NO_GROUP
from gradsync.records import Diagnosis
from gradsync.text import full_stop
from support.rules.shares import GUIDE

SAMPLES, RANKS = 10, 4
COMMAND = "`python template_data_loader.py`"
SHARE = re.compile(r"[\[({]?\s*\d+(?:[\s,;]+\d+)+\s*[\])}]?")  # two numbers or more
BROKEN = {
    "unequal": "the last rank gets fewer samples than the others",
    "incomplete": "a sample is in no share",
    "alike": "all ranks get the same share",
}
Runs = Mapping[str, Mapping[str, Any]]  # by way of sharing; see support.probes.scripts


def raises(runs: Runs) -> Diagnosis | None:
    """Recognise a program that raises an exception although the sampler is right."""
    if runs["whole"]["raised"] is None:
        return None
    error, where = runs["whole"]["raised"]
    without_group = NO_GROUP in error
    text = (
        f"{COMMAND} ends with an exception at {where}: {full_stop(error)} It should print the "
        f"shares of all {RANKS} ranks."
    )
    if without_group:
        text += (
            " It is a single process without torchrun, so it has no process group. Create a "
            "sampler for each rank, with `num_replicas` and `rank` as arguments."
        )
    code = "group-not-initialised" if without_group else "exception"
    return Diagnosis(code, (), text, where, GUIDE)


def prints_no_shares(runs: Runs) -> Diagnosis | None:
    """Recognise output that lacks a share of 10 samples on 4 ranks."""
    lines, shares = runs["whole"]["lines"], runs["whole"]["shares"]
    if not lines:
        return _found(f"{COMMAND} prints nothing")
    numbers = [int(number) for line in lines for number in re.findall(r"\d+", line)]
    made = {rank: own for *place, rank, own in shares if place == [SAMPLES, RANKS]}
    missing = [rank for rank in range(RANKS) if not _follows(made.get(rank, []), numbers)]
    if not missing:
        return None
    return _found(f"{COMMAND} does not print the share of rank {missing[0]}")


def prints_no_verdict(runs: Runs) -> Diagnosis | None:
    """Recognise output that, apart from the shares, is the same for right and wrong shares."""
    usual = _besides_shares(runs["whole"]["lines"])
    for sharing, what in BROKEN.items():
        if _besides_shares(runs[sharing]["lines"]) == usual:
            return _found(
                f"{COMMAND} prints the same text for correct shares and for wrong shares in which "
                f"{what}"
            )
    return None


def _besides_shares(lines: Sequence[str]) -> list[str]:
    return [" ".join(SHARE.sub(" ", line).split()) for line in lines]


def _follows(share: Sequence[int], numbers: Sequence[int]) -> bool:
    """Return whether a share is among the numbers, as consecutive indices."""
    size = len(share)
    starts = range(len(numbers) - size + 1)
    return size > 0 and any(list(numbers[k : k + size]) == list(share) for k in starts)


def _found(what: str) -> Diagnosis:
    text = (
        f"{what}. It should print each rank's share of {SAMPLES} samples on {RANKS} ranks, and "
        "print whether the shares are equal in size, cover all samples, and overlap only in the "
        "padding."
    )
    return Diagnosis("wrong-output", (), text, guide=GUIDE)
