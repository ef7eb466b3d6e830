"""Mistakes in shards and microbatches: parts of 0..count-1, even, in order and complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsync.records import Diagnosis
from support.rules.shares import repeated, some

SHARDS, MICROBATCHES = "Shares without padding", "Microbatches"


def uneven_parts(
    parts: Sequence[Sequence[int]], count: int, case: str, guide: str
) -> Diagnosis | None:
    """Recognise parts, lists of indices, that are not in order, complete and even."""
    every = [index for part in parts for index in part]
    sizes = [len(part) for part in parts]
    missing = sorted(set(range(count)) - set(every))
    same = len(parts) > 1 and sizes[0] and all(part == parts[0] for part in parts)
    strangers = sorted(set(every) - set(range(count)))
    twice = repeated(every)
    for holds, code, text in (
        (not same, "same-shard-on-every-rank", f"all parts are the same, {some(parts[0])}."),
        (
            not missing,
            "samples-missing",
            f"no part contains {some(missing)}. Every sample must be in exactly one part: if the "
            "parts can't be equal, give each of the first ones one more sample.",
        ),
        (
            not strangers,
            "padding-wrong",
            f"the parts contain {some(strangers)}, but the last index is {count - 1}.",
        ),
        (not twice, "samples-repeated", f"the parts contain {some(twice)} more than once."),
        (
            max(sizes) - min(sizes) <= 1,
            "unequal-shards",
            f"the sizes are {some(sizes)}. They must differ by at most one.",
        ),
        (
            sizes == sorted(sizes, reverse=True),
            "unequal-shards",
            f"the sizes are {some(sizes)}. The larger parts must come first.",
        ),
        (
            every == sorted(every),
            "not-contiguous",
            f"the first part is {some(parts[0])}. Each part must be contiguous, and the parts must "
            "follow each other in order.",
        ),
    ):
        if not holds:
            return Diagnosis(code, (), f"{case}: {text}", guide=guide)
    return None


def not_ranges(kinds: Sequence[str], case: str) -> Diagnosis | None:
    """Recognise shares of another type than `range`, given the names of their types."""
    others = sorted(set(kinds) - {"range"})
    if not others:
        return None
    text = f"{case}: a share is returned as a {' or a '.join(others)}. Return a `range`."
    return Diagnosis("wrong-signature", (), text, guide=SHARDS)


def other_kinds(kinds: Sequence[bool], case: str) -> Diagnosis | None:
    """Recognise microbatches that are not a list of tuples, given whether each of these is one."""
    if all(kinds):
        return None
    text = f"{case}: split_microbatches must return a list of tuples."
    return Diagnosis("wrong-signature", (), text, guide=MICROBATCHES)


def other_number(
    parts: Sequence[Sequence[Any]], number: int, tensors: int, case: str
) -> Diagnosis | None:
    """Recognise a wrong number of microbatches, or of tensors in one of them."""
    if len(parts) == number and all(len(part) == tensors for part in parts):
        return None
    text = (
        f"{case}: {len(parts)} parts of {sorted({len(part) for part in parts})} tensors are "
        f"returned. Each part must have all {tensors} tensors of the batch."
    )
    return Diagnosis("wrong-length", (), text, guide=MICROBATCHES)


def not_refused(
    answers: Sequence[str | None], cases: Sequence[tuple[int, int]]
) -> Diagnosis | None:
    """Recognise numbers of microbatches that raise no ValueError.

    Args:
        answers: for each case, what it did instead, or None.
        cases: the number of samples and of parts.
    """
    for (samples, number), got in zip(cases, answers, strict=True):
        if got is not None:
            text = (
                f"A batch of {samples} samples in {number} parts raises {got}. It must raise a "
                "ValueError."
            )
            return Diagnosis("bad-arguments-accepted", (), text, guide=MICROBATCHES)
    return None
