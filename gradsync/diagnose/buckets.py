"""What the ranks' collectives show of gradients that travel in buckets, whatever carries them.

A bucket is judged by the sizes of what a rank put in: all-reduce, reduce-scatter with all-gather,
broadcasts or objects, all are fine. Sums made of messages between two ranks are fine too, but how
many of those a bucket takes is the learner's own affair. A test that has to know what came before
what makes marks: collectives in a group of its own, told by a dtype and a shape that nobody else
uses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gradsync.diagnose import Rule, waiting
from gradsync.diagnose import gradients as phase1
from gradsync.diagnose.confusions import would_be
from gradsync.diagnose.rounding import rounded
from gradsync.diagnose.values import close
from gradsync.records import Collective, Diagnosis, Observation
from gradsync.text import ranks_text

GUIDE = "Buckets and overlap"
CARRIERS = ("float", "bfloat", "uint8")  # gradients, or the bytes of an object that holds them
LEAST = 16  # elements; what is smaller is a loss, a count or a flag for each parameter

Stretch = tuple[int | None, int | None]  # from one mark to another; None: from or to the end


def averaging_mistakes(
    local: Sequence[phase1.Gradients], guide: str = GUIDE, departures: Sequence[Rule] = ()
) -> list[Rule]:
    """Return phase 1's rules for means of gradients, that name a heading of phase 2.

    Those for `departures` of buckets say more than phase 1's, and come before.
    """
    rules = phase1.gradient_mistakes(local)
    nearly = rounded("the mean over the ranks", guide)
    return [nobody_waited, nearly, *departures, *(with_guide(rule, guide) for rule in rules)]


def nobody_waited(seen: Observation, _expected: Any) -> Diagnosis | None:
    """A rank entered a collective for a bucket, and never saw to it that it was complete."""
    return waiting.nobody_waited(seen, GUIDE, carries_gradients)


def some_undivided(seen: Observation, expected: Any) -> Diagnosis | None:
    """Know gradients of which some are the mean over the ranks, and the others their sum."""
    if expected is None:
        return None
    pairs = [(rank, name) for rank, grads in enumerate(expected) for name in grads]
    wrong = [(r, n) for r, n in pairs if not close(seen[r].get(n), expected[r][n])]
    size = seen.world_size
    summed = all(close(seen[r].get(n), expected[r][n] * size) for r, n in wrong)
    if not wrong or len(wrong) == len(pairs) or not summed:
        return None
    ranks, names = (sorted(set(part)) for part in zip(*wrong, strict=True))
    text = (
        f"{', '.join(names)}: exactly {size} times the mean of the ranks' on "
        f"{ranks_text(ranks)}, while other gradients are right. Buckets leave in more than one "
        "place, during backward and in finish(), and what one of these sends is not divided by "
        "the number of ranks"
    )
    return Diagnosis("sum-not-mean", tuple(ranks), text, phase1.last_reduce(seen), GUIDE)


def with_guide(rule: Rule, guide: str) -> Rule:
    """Return the rule, naming another heading of GUIDELINES.md."""

    def renamed(seen: Observation, expected: Any) -> Diagnosis | None:
        found = rule(seen, expected)
        if found is None or found.guide is None:
            return found
        return replace(found, guide=guide)

    return renamed


def mark_of(call: Collective) -> int | None:
    """Return the number of a mark: an int8 tensor of the shape (1, 1, number)."""
    if call.dtype != "int8" or len(call.shapes) != 1 or call.shapes[0][:-1] != (1, 1):
        return None
    return call.shapes[0][-1]


def between(seen: Observation, rank: int, stretch: Stretch = (None, None)) -> list[Collective]:
    """Return what a rank entered from one mark to another, marks left out."""
    start, end = stretch
    inside = start is None
    found = []
    for call in seen.collectives(rank):
        mark = mark_of(call)
        if inside and mark is None:
            found.append(call)
        if mark is not None and mark == end:
            break
        inside = inside or (mark is not None and mark == start)
    return found


def volume(call: Collective) -> int:
    """Return how many elements a rank put into a collective."""
    recorded = sum(map(math.prod, call.shapes))
    if call.op.startswith("reduce_scatter"):  # what is recorded of it is the part that comes out
        return recorded * len(call.members)
    return recorded


def carries_gradients(call: Collective) -> bool:
    """Tell whether it may be a bucket of gradients, not a loss or a count."""
    return (call.dtype or "").startswith(CARRIERS) and volume(call) >= LEAST


def lanes(calls: Sequence[Collective]) -> dict[tuple[str, int | None], list[int]]:
    """Return the sizes that gradients travelled in, by kind of call and its root or peer."""
    found: dict[tuple[str, int | None], list[int]] = {}
    for call in calls:
        if carries_gradients(call) and call.op != "recv":
            end = call.peer if call.op == "send" else call.root
            found.setdefault((call.op, end), []).append(volume(call))
    return found


def bucket_sizes(calls: Sequence[Collective]) -> list[int]:
    """Return the sizes of the buckets in the order in which they left: the lane with the most."""
    return max(lanes(calls).values(), key=sum, default=[])


def in_messages(seen: Observation) -> bool:
    """Tell whether gradients travel from rank to rank, in pieces that need not be whole buckets."""
    carriers = [call for call in seen.collectives(0) if carries_gradients(call)]
    return bool(carriers) and all(call.op in ("send", "recv") for call in carriers)


def averaged_elements(seen: Observation, stretch: Stretch = (None, None)) -> int:
    """Return how many elements were averaged, counted as often as each was."""
    if not in_messages(seen):
        return sum(bucket_sizes(between(seen, 0, stretch)))
    ranks = range(seen.world_size)
    sent = [
        size for r in ranks for lane in lanes(between(seen, r, stretch)).values() for size in lane
    ]
    return sum(sent) // (2 * (seen.world_size - 1))  # all parts have to meet, and to get back


def unlike_buckets(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Ranks that differ in what they use entered collectives that do not belong together."""
    failure = seen.failure
    if failure is None or not failure.diagnosis.code.startswith(("deadlock", "shape-mismatch")):
        return None
    text = (
        f"{failure.diagnosis.explanation} The ranks do not use the same parameters in this pass, "
        "or not in the same order: all the same, each has to start the same buckets in the same "
        "order, whatever gradients it has and whenever they come"
    )
    return replace(failure.diagnosis, explanation=text, guide=GUIDE)


def only_these_wrong(
    prefixes: Sequence[str], code: str, explanation: str, guide: str = GUIDE
) -> Rule:
    """Return the rule for gradients that are wrong for parameters of these names alone."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None:
            return None
        wrong = {
            name
            for rank, grads in enumerate(expected)
            for name in grads
            if not close(seen[rank].get(name), grads[name])
        }
        if not wrong or not all(name.startswith(tuple(prefixes)) for name in wrong):
            return None
        text = f"{', '.join(sorted(wrong))} did not end as the mean over the ranks: {explanation}"
        ranks = tuple(r for r, grads in enumerate(expected) if not close(seen[r], grads))
        return Diagnosis(code, ranks, f"{text}", guide=guide)

    return rule


def lost_or_local(held: Sequence[phase1.Gradients], sent: Sequence[phase1.Gradients]) -> list[Rule]:
    """Return the rules for passes under no_sync, given what those made on each rank, and others."""
    mean, size = phase1.mean_of(sent), len(sent)
    kept = "what a backward under no_sync() accumulated stays with each rank, and only the rest is "
    kept += "averaged: all that is in `grad` at finish() is to become the mean"
    lost = "the gradients are those of the backward that sends alone: what was accumulated under "
    lost += "no_sync() is lost"
    mixed = [{n: mean[n] + own[n] for n in mean} for own in held]
    shrunk = [{n: mean[n] + own[n] / size for n in mean} for own in held]
    return [
        would_be(mixed, "gradients-not-synchronised", kept, GUIDE),
        would_be(shrunk, "gradients-not-synchronised", kept, GUIDE),
        would_be([mean] * size, "accumulation-lost", lost, GUIDE),
    ]


def in_objects(seen: Observation) -> bool:
    """Tell whether gradients travel inside objects, whose bytes are all that is seen."""
    carriers = [call for call in seen.collectives(0) if carries_gradients(call)]
    return bool(carriers) and all(call.dtype == "uint8" for call in carriers)


def waits_in_backward(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Rank 0, that goes through its backward alone, entered a bucket and came no further.

    An odd mark is before its backward, an even one in its midst.
    """
    if seen.failure is None or seen.failure.status not in ("deadlock", "timeout"):
        return None
    calls = seen.collectives(0)
    last = [mark for call in calls if (mark := mark_of(call)) is not None][-1:]
    if not last or last[0] % 2 == 0 or not carries_gradients(calls[-1]):
        return None
    where = calls[-1].where
    text = (
        f"in mid-backward rank 0 starts to average a bucket, at {where}, and waits there until the "
        "other ranks have come as well: backward has to go on while the bucket is on its way, and "
        "finish() waits"
    )
    return Diagnosis("no-overlap", (0,), text, where, GUIDE)
