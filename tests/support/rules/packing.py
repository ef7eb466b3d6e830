"""Mistakes in filling buckets with parameters, and in when the first bucket is sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from gradsync.records import Diagnosis, Observation
from gradsync.text import counted, listed, size_text
from support.rules.buckets import (
    GUIDE,
    Stretch,
    averaged_elements,
    between,
    bucket_sizes,
    in_messages,
    in_objects,
    lanes,
)

BESIDE = 32  # additional elements that a bucket may have: flags, counts, or alignment
OBJECT = 4096  # bytes that an object may have besides its gradients
DEFAULT_CAP = 25.0
MOMENTS = {  # of `support.probes.chains`: when a step happens, and what may be wrong in it
    "second": (
        "after the first one",
        "Send a bucket as soon as its gradients are ready, so that it overlaps with backward.",
    ),
    "interrupted": (
        "after a no_sync() block that ended with an exception",
        "Let the end of no_sync() restore its state in a `finally`.",
    ),
    "unused": (
        "after a step that did not use the last layer",
        "Reset your counters of ready gradients in each pass.",
    ),
}


def packed_wrongly(
    seen: Observation, stretch: Stretch, sizes: Sequence[int], cap: float, dtype: str
) -> Diagnosis | None:
    """Recognise buckets that are not filled up to the cap, from the last parameter to the first.

    Args:
        seen: two ranks that average the gradients of a chain.
        stretch: the marks before and after a step.
        sizes: the elements of each parameter of the chain.
        cap: the cap in elements.
        dtype: the dtype of all parameters.
    """
    by_rank = [bucket_sizes(between(seen, rank, stretch)) for rank in range(len(seen))]
    case = f"{len(sizes)} parameters of {list(sizes)} elements of {dtype}, with a cap "
    case += f"(`bucket_cap_mb`) of {cap:g} elements"
    size = np.dtype(dtype).itemsize
    found = _packing(by_rank[0], averaged_elements(seen, stretch), sizes, cap, size, seen)
    if found is None and not in_messages(seen) and by_rank[0] != by_rank[1]:
        found = (
            "deadlock-order-differs",
            f"the ranks start buckets of {by_rank} elements (one list per rank). All ranks must "
            "start buckets of the same sizes in the same order.",
        )
    if found is None:
        return None
    return Diagnosis(found[0], tuple(range(len(seen))), f"{case}: {found[1]}", guide=GUIDE)


def sent_again(seen: Observation, sizes: Sequence[int], steps: int) -> Diagnosis | None:
    """Recognise gradients that are sent several times in a step, in some of the `steps`."""
    averaged, total = averaged_elements(seen), steps * sum(sizes)
    if in_objects(seen) or averaged < 1.4 * total:  # of objects, only the bytes are known
        return None
    text = (
        f"{counted(steps, 'step')} of {sum(sizes)} gradients average {averaged} floats, although "
        f"there are only {total}. Send each gradient once in a step. If the first step is right, "
        "something that counts or marks gradients is not reset by finish()."
    )
    ranks = tuple(range(seen.world_size))
    return Diagnosis("synchronised-too-often", ranks, text, guide=GUIDE)


def _packing(
    buckets: list[int],
    averaged: int,
    sizes: Sequence[int],
    cap: float,
    element: int,
    seen: Observation,
) -> tuple[str, str] | None:
    """Return the code and the text of a mistake in one rank's buckets, in the order of sending.

    `element` is the size of an element in bytes.
    """
    total, unit, pieces = sum(sizes), "", in_messages(seen)
    if in_objects(seen):
        buckets, unit = [max(0, size - OBJECT) // element for size in buckets], "about "
        averaged = sum(buckets)
    if not buckets:
        return "gradients-not-synchronised", "no collective sends gradients."
    if averaged > 1.5 * total:
        return "synchronised-too-often", (
            f"one backward and finish() average {unit}{averaged} elements, but there are only "
            f"{total} gradients. Send each gradient once."
        )
    fit_together = any(a + b <= cap for a, b in pairwise(sizes))
    if not pieces and (len(buckets) == 1 or (fit_together and len(buckets) >= len(sizes))):
        return "not-in-buckets", (
            f"the gradients are sent in {counted(len(buckets), 'bucket')}, of {buckets} elements. "
            "Fill each bucket until the next parameter would exceed the cap. A MiB has 2**20 bytes."
        )
    single = {*sizes, *(math.ceil(size / len(seen)) for size in sizes if pieces)}
    larger = [
        size
        for size in buckets
        if size > cap + BESIDE and not any(0 <= size - one <= BESIDE for one in single)
    ]
    if larger:
        return "not-in-buckets", (
            f"there are buckets of {larger} elements. Only a single parameter may exceed the cap. "
            f"The cap counts bytes, here {element} for each element."
        )
    beside = BESIDE if averaged > total else 0  # an exact fit is judged if nothing else is sent
    return None if unit or pieces else _order(buckets, sizes, cap - beside)


def _order(buckets: list[int], sizes: Sequence[int], cap: float) -> tuple[str, str] | None:
    filled = _parameters_of(buckets, sizes)
    shown = f"the buckets, in the order in which they are sent, have {buckets} elements"
    if any(bucket - whole > BESIDE for bucket, (whole, _) in zip(buckets, filled, strict=True)):
        if is_forward(buckets, sizes):
            return "not-in-buckets", (
                f"{shown}: they are filled from the first parameter to the last. Backward "
                "computes the last parameter's gradient first, so the first bucket is complete "
                "only at the end of backward. Fill the buckets in reverse parameter order."
            )
        return "not-in-buckets", (
            f"{shown}, which are not complete parameters from the last to the first. Backward "
            "computes the last layer's gradients first, so send them first."
        )
    for whole, following in filled:
        if whole + following <= cap:
            exact = ": together they have exactly as many as the cap" * (whole + following == cap)
            return "not-in-buckets", (
                f"{shown}. The bucket of {whole} elements has room for the next parameter "
                f"({following}), but was sent without it{exact}. Fill a bucket until the next "
                "parameter would exceed the cap. A MiB has 2**20 bytes."
            )
    return None


def is_forward(buckets: Sequence[int], sizes: Sequence[int]) -> bool:
    """Return whether each bucket has complete parameters, always the first of the remaining."""
    filled = _parameters_of(buckets, sizes[::-1])
    return bool(buckets) and all(
        bucket - whole <= BESIDE for bucket, (whole, _) in zip(buckets, filled, strict=True)
    )


def _parameters_of(buckets: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, float]]:
    """Return the elements of the complete parameters in each bucket, and of the next parameter.

    The buckets are filled from the last parameter to the first. If there is no next parameter, its
    size is infinite.
    """
    left, filled = list(sizes), []
    for bucket in buckets:
        whole = 0
        while left and whole + left[-1] <= bucket:
            whole += left.pop()
        filled.append((whole, left[-1] if left else math.inf))
    return filled


def not_one_bucket(
    seen: Observation, sizes: Sequence[int], default: float | None
) -> Diagnosis | None:
    """Recognise a small model whose gradients are not sent in one bucket by default.

    Args:
        seen: two ranks that average the gradients of a chain once.
        sizes: the elements of each parameter of the chain.
        default: the default cap; None if it is not a number, but may mean the right one.
    """
    by_lane = lanes(between(seen, 0, (1, 2)))
    counts = {op: len(found) for (op, _), found in by_lane.items()}
    most = max((n if op != "send" else n / 2 for op, n in counts.items()), default=0)
    if most == 0:
        text = "No collective sends gradients. Average them over the ranks."
        return Diagnosis("gradients-not-synchronised", (), text, guide=GUIDE)
    if most > 1:
        calls = listed(f"{counted(n, 'call')} of {op}" for op, n in counts.items())
        text = (
            f"The gradients of {len(sizes)} parameters, {size_text(4 * sum(sizes))} in all, are "
            f"sent with {calls}. They fit into one bucket of at most 25 MiB, and every further "
            "message waits for the network again. Send them together."
        )
        return Diagnosis("not-in-buckets", tuple(range(len(seen))), text, guide=GUIDE)
    if default in (DEFAULT_CAP, None):
        return None
    text = (
        f"The default of `bucket_cap_mb` is {default}. It must be 25.0 (MiB), because callers may "
        "omit it."
    )
    return Diagnosis("wrong-signature", (), text, guide=GUIDE)


def nothing_sent_early(
    seen: Observation, sizes: Sequence[int], moments: Sequence[str]
) -> Diagnosis | None:
    """Recognise steps in which no bucket is sent before backward reaches the first layer.

    Args:
        seen: the run of `support.probes.chains.probe_overlap`.
        sizes: the elements of each parameter of the chain, each larger than half the cap.
        moments: when the steps happen, keys of MOMENTS.
    """
    for number, moment in enumerate(moments):
        start, reached = 2 * number + 1, 2 * number + 2
        if lanes(between(seen, 0, (start, reached))):
            continue
        late = bucket_sizes(between(seen, 0, (reached, reached + 1)))
        when, advice = MOMENTS[moment]
        if moment == "second" and is_forward(late, sizes):
            advice = (
                f"The buckets have {late} floats, in the order in which they are sent: they are "
                "filled from the first parameter to the last, and the first one is complete only "
                "at the end of backward. Fill them in reverse parameter order."
            )
        text = (
            f"In a step {when}, backward had computed all gradients except the first layer's, but "
            f"no bucket was sent, although the cap makes {len(sizes)} buckets. {advice}"
        )
        return Diagnosis("no-overlap", tuple(range(len(seen))), text, guide=GUIDE)
    return None
