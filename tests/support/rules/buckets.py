"""Mistakes in averaging gradients in buckets, and the sizes of the buckets.

A bucket is judged by the number of elements that a rank contributes. All-reduce, reduce-scatter
with all-gather, broadcasts and objects are all accepted. So are sums made of messages between two
ranks, however many messages a bucket takes. A test that needs the order of events makes marks:
collectives in a separate group, recognised by a dtype and a shape that no submission uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradsync.ranks.deadlocks.calls import numel
from gradsync.ranks.deadlocks.explanations import without_advice
from gradsync.records import Collective, Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.testing.values import array, close
from gradsync.text import listed, ranks_text
from support.rules import gradients as phase1
from support.rules import waiting
from support.rules.reductions import last_reduce
from support.rules.rounding import rounded
from support.rules.wrong_results import ends_with

GUIDE = "Buckets and overlap"
CARRIERS = ("float", "bfloat", "uint8")  # gradients, or the bytes of an object that contains them
LEAST = 16  # elements; a smaller tensor is a loss, a count, or a flag for each parameter

# The marks before and after some calls; None: from the first call, or to the last one.
Stretch = tuple[int | None, int | None]


def averaging_mistakes(
    local: Sequence[phase1.Gradients],
    guide: str = GUIDE,
    departures: Sequence[Rule] = (),
    steps: int = 1,
) -> list[Rule]:
    """Return phase 1's rules for averaged gradients, with a heading of phase 2's guide.

    The rules in `departures` are more specific, so they come first. `steps` is the number of
    times that the run averages.
    """
    rules = phase1.gradient_mistakes(local, steps)
    nearly = rounded("the mean over the ranks", guide)
    return [nobody_waited, nearly, *departures, *(with_guide(rule, guide) for rule in rules)]


def nobody_waited(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise a rank that starts to average a bucket and never waits until it is complete."""
    return waiting.nobody_waited(seen, GUIDE, carries_gradients)


def some_undivided(seen: Observation, expected: Any) -> Diagnosis | None:
    """Recognise gradients that are partly the mean over the ranks, and partly the sum."""
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
        f"The gradients of {listed(names)} are exactly {size} times the mean over the ranks on "
        f"{ranks_text(ranks)}, while the other gradients are right. If buckets are sent from "
        "several places, such as a hook and finish(), each must divide by the number of ranks."
    )
    return Diagnosis("sum-not-mean", tuple(ranks), text, last_reduce(seen), GUIDE)


def with_guide(rule: Rule, guide: str) -> Rule:
    """Return the rule with a different heading of GUIDELINES.md."""

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
    """Return the collectives that a rank entered between two marks, without the marks."""
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
    """Return how many elements a rank contributed to a collective."""
    recorded = numel(call)
    if call.op.startswith("reduce_scatter"):  # its output is recorded, which is one part
        return recorded * len(call.members)
    return recorded


def carries_gradients(call: Collective) -> bool:
    """Return whether a collective may average a bucket of gradients, not a loss or a count."""
    return (call.dtype or "").startswith(CARRIERS) and volume(call) >= LEAST


def lanes(calls: Sequence[Collective]) -> dict[tuple[str, int | None], list[int]]:
    """Return the sizes of the buckets, by operation and its root or peer."""
    found: dict[tuple[str, int | None], list[int]] = {}
    for call in calls:
        if carries_gradients(call) and call.op != "recv":
            end = call.peer if call.op == "send" else call.root
            found.setdefault((call.op, end), []).append(volume(call))
    return found


def bucket_sizes(calls: Sequence[Collective]) -> list[int]:
    """Return the sizes of the buckets in the order in which they were sent.

    If several operations carry gradients, these are the sizes of the one that carries the most.
    """
    return max(lanes(calls).values(), key=sum, default=[])


def in_messages(seen: Observation) -> bool:
    """Return whether gradients are sent from rank to rank, in pieces that need not be buckets."""
    carriers = [call for call in seen.collectives(0) if carries_gradients(call)]
    return bool(carriers) and all(call.op in ("send", "recv") for call in carriers)


def averaged_elements(seen: Observation, stretch: Stretch = (None, None)) -> int:
    """Return how many elements were averaged; an element averaged twice counts twice."""
    if not in_messages(seen):
        return sum(bucket_sizes(between(seen, 0, stretch)))
    ranks = range(seen.world_size)
    sent = [
        size for r in ranks for lane in lanes(between(seen, r, stretch)).values() for size in lane
    ]
    # To sum, each element is sent N-1 times, and N-1 times again to return the sum to all ranks.
    return sum(sent) // (2 * (seen.world_size - 1))


def unlike_buckets(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise ranks that use different parameters and start buckets that do not match."""
    failure = seen.failure
    if failure is None or not failure.diagnosis.code.startswith(("deadlock", "shape-mismatch")):
        return None
    text = (
        f"{without_advice(failure.diagnosis.explanation)} In this pass, the ranks "
        "use different parameters, or use them in a different order. Each rank must still start "
        "the same buckets in the same order, even if some of its gradients are missing, or are "
        "ready in a different order."
    )
    return replace(failure.diagnosis, explanation=text, guide=GUIDE)


def only_these_wrong(
    prefixes: Sequence[str], code: str, explanation: str, guide: str = GUIDE
) -> Rule:
    """Return the rule for gradients that are wrong only for parameters with these prefixes."""

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
        names = listed(sorted(wrong))
        text = f"The gradients of {names} are not the mean over the ranks. {explanation}"
        ranks = tuple(r for r, grads in enumerate(expected) if not close(seen[r], grads))
        return Diagnosis(code, ranks, text, guide=guide)

    return rule


def left_in_bucket(
    local: Sequence[phase1.Gradients], before: phase1.Gradients | None
) -> list[Rule]:
    """Return the rules for buckets in which the numbers of the pass before count once more.

    Args:
        local: by rank, its own gradients in this pass, zeros where it has none.
        before: the means of the pass before, None in the first pass.
    """
    if before is None:
        return []
    mean, size = phase1.mean_of(local), len(local)
    absent = {name: sum(not np.any(array(own[name])) for own in local) for name in mean}
    text = (
        "A rank without a gradient contributed what its bucket held since the pass before. It "
        "counts as zero: write zeros into its part of the bucket in every pass."
    )
    return [
        ends_with(
            [{name: mean[name] + share * absent[name] * before[name] for name in mean}] * size,
            "none-gradient-skipped",
            text,
            GUIDE,
        )
        for share in (1.0, 1.0 / size)  # divided before the bucket is filled, or after the sum
    ]


def lost_or_local(held: Sequence[phase1.Gradients], sent: Sequence[phase1.Gradients]) -> list[Rule]:
    """Return the rules for gradients accumulated under no_sync() that are not averaged.

    Args:
        held: by rank, the gradients of the passes under no_sync().
        sent: by rank, the gradients of the other passes.
    """
    mean, size = phase1.mean_of(sent), len(sent)
    kept = "The gradients accumulated under no_sync() are not averaged, only the gradients of "
    kept += "the other backward passes are. After finish(), everything in `grad` must be the mean "
    kept += "over the ranks, whether it came before or after what was sent."
    lost = "The gradients accumulated under no_sync() are lost: `grad` has only the gradients of "
    lost += "the other backward pass. Average all of `grad`; overwrite nothing added since."
    mixed = [{n: mean[n] + own[n] for n in mean} for own in held]
    shrunk = [{n: mean[n] + own[n] / size for n in mean} for own in held]
    return [
        counted_too_early(held, sent),
        ends_with(mixed, "gradients-not-synchronised", kept, GUIDE),
        ends_with(shrunk, "gradients-not-synchronised", kept, GUIDE),
        ends_with([mean] * size, "accumulation-lost", lost, GUIDE),
    ]


def counted_too_early(held: Sequence[phase1.Gradients], sent: Sequence[phase1.Gradients]) -> Rule:
    """Return the rule for buckets that hold only the gradients of passes under no_sync()."""
    before = phase1.mean_of(held)
    after = [{n: before[n] + own[n] for n in own} for own in sent]

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None:
            return None
        by_rank = list(zip(seen, after, expected, strict=True))
        early = [n for n in before if all(close(ended[n], own[n]) for ended, own, _ in by_rank)]
        late = [n for n in before if n not in early]
        if not early or not all(close(e[n], mean[n]) for e, _, mean in by_rank for n in late):
            return None
        text = (
            f"The gradients of {listed(early)} were sent before the backward outside of no_sync() "
            "had added to them: only the gradients of the passes under no_sync() are averaged. In "
            "such a pass, do not count a gradient as ready."
        )
        ranks = tuple(range(len(seen)))
        return Diagnosis("only-some-parameters", ranks, text, guide=GUIDE)

    return rule


def in_objects(seen: Observation) -> bool:
    """Return whether gradients are sent inside objects: only the bytes of these are recorded."""
    carriers = [call for call in seen.collectives(0) if carries_gradients(call)]
    return bool(carriers) and all(call.dtype == "uint8" for call in carriers)


def waits_in_backward(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise that rank 0 waits for the other ranks in a backward that it runs alone.

    An odd mark is made before its backward, an even one in the middle of it.
    """
    if seen.failure is None or seen.failure.status not in ("deadlock", "timeout"):
        return None
    calls = seen.collectives(0)
    last = [mark for call in calls if (mark := mark_of(call)) is not None][-1:]
    if not last or last[0] % 2 == 0 or not carries_gradients(calls[-1]):
        return None
    where = calls[-1].where
    text = (
        f"In the middle of backward, rank 0 starts to average a bucket, at {where}, and waits for "
        "the other ranks there. Backward must continue while the bucket is being averaged. Start "
        "the collective asynchronously, and wait for it in finish()."
    )
    return Diagnosis("no-overlap", (0,), text, where, GUIDE)
