"""Mistakes in how a step goes through its microbatches, and when it sends the gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradsync.records import Diagnosis, Observation
from gradsync.text import counted, listed
from support.rules.buckets import between, bucket_sizes, in_objects, lanes
from support.rules.reductions import parameters_averaged

GUIDE = "Gradient accumulation"


def stepped_otherwise(
    seen: Observation, sizes: Sequence[Sequence[int]], elements: Mapping[str, int]
) -> Diagnosis | None:
    """Recognise a step that joins its microbatches, or sends gradients too early, late or often.

    Args:
        seen: by rank, the description of `support.probes.accumulation.watched_steps`.
        sizes: samples, by rank and microbatch.
        elements: the number of elements of each trainable parameter, by name.
    """
    case = f"A step with {len(sizes[0])} microbatches and {sum(elements.values())} elements of "
    case += "gradients"
    found = (
        _in_each_microbatch(seen, sizes)
        or _too_early(seen)
        or _too_late(seen)
        or _number_sent(seen, sum(elements.values()))
    )
    averaged = parameters_averaged(list(elements), GUIDE)(seen, None)
    if averaged is not None and (found is None or found[0] != "accumulation-ignored"):
        return averaged
    if found is None:
        return None
    code, text = found
    return Diagnosis(code, tuple(range(len(seen))), f"{case}: {text}", guide=GUIDE)


def _in_each_microbatch(seen: Any, sizes: Sequence[Sequence[int]]) -> tuple[str, str] | None:
    for value, parts in zip(seen, sizes, strict=True):
        if value["losses"] < len(parts):
            return "accumulation-ignored", (
                f"the loss is computed {counted(value['losses'], 'time')}. Microbatches that are "
                "joined need as much memory as the whole batch. Run forward and the loss for each "
                "microbatch separately."
            )
        if not value["kept"]:
            return "mode-not-restored", (
                "train_step_accumulated switches the model to another mode, training or "
                "evaluation, which changes dropout and BatchNorm. Leave the mode as it is."
            )
    return None


def _too_early(seen: Observation) -> tuple[str, str] | None:
    if not any(lanes(between(seen, rank, (1, 2))) for rank in range(len(seen))):
        return None
    return "synchronised-too-often", (
        "gradients are sent before the loss of the last microbatch is computed. Run the backward "
        "passes of all earlier microbatches under no_sync()."
    )


def _too_late(seen: Any) -> tuple[str, str] | None:
    if not any(any(value["depths"][-1:]) for value in seen):
        return None
    return "no-overlap", (
        "the last microbatch's backward also runs under no_sync(). Then no bucket is sent before "
        "finish(), and nothing overlaps with backward. Run the last backward outside of no_sync()."
    )


def _number_sent(seen: Observation, elements: int) -> tuple[str, str] | None:
    sent = [sum(bucket_sizes(between(seen, rank, (1, 3)))) for rank in range(len(seen))]
    if not in_objects(seen) and max(sent) > 1.5 * elements:
        return "synchronised-too-often", (
            f"rank 0 sends {sent[0]} elements. Send the gradients once for all microbatches "
            "together, with the last one."
        )
    if min(sent) == 0:
        return "gradients-not-synchronised", (
            "no collective sends gradients. Average them over the ranks."
        )
    return None


def not_split(
    plain: Sequence[Mapping[str, Any]],
    seen: Sequence[Mapping[str, Any]],
    parts: int,
    batch_size: int,
) -> Diagnosis | None:
    """Recognise a training run whose batches are not split, or that splits them unasked.

    Args:
        plain: by rank, a training run without `accumulation_steps`, with the `sizes` of its calls
            of the model.
        seen: the same with as many steps as `parts`.
        parts: the number of microbatches of each batch.
        batch_size: the samples of a batch.
    """
    whole, most = ([max(value["sizes"], default=0) for value in run] for run in (plain, seen))
    every = range(len(seen))
    for ranks, code, text in (
        (
            [rank for rank in every if most[rank] == 0],
            "does-not-learn",
            "train returned without running the model on any sample.",
        ),
        (
            [rank for rank in every if most[rank] > -(-batch_size // parts)],
            "accumulation-ignored",
            f"With batches of {batch_size} samples in {parts} microbatches, the model is trained "
            f"on {max(most)} samples at once. The sizes of the microbatches must differ by at most "
            f"one, so that each needs about 1/{parts} of the memory.",
        ),
        (
            [rank for rank in every if whole[rank] != batch_size],
            "wrong-signature",
            f"Without `accumulation_steps`, train uses {listed(whole)} samples at once (by rank), "
            f"with batches of {batch_size}. The default must be 1: the whole batch at once.",
        ),
    ):
        if ranks:
            return Diagnosis(code, tuple(ranks), text, guide=GUIDE)
    return None


def uneven_microbatches(
    seen: Sequence[Mapping[str, Any]], batches: Sequence[int], parts: int
) -> Diagnosis | None:
    """Recognise microbatches whose number or sizes are wrong.

    Args:
        seen: by rank, a training run with the `sizes` of its calls of the model.
        batches: the samples of each batch.
        parts: the number of microbatches of each batch, if it has as many samples.
    """
    counts = [min(parts, samples) for samples in batches]
    uneven = [rank for rank, value in enumerate(seen) if not _are_even(value["sizes"], counts)]
    if not uneven:
        return None
    text = (
        f"With batches of {listed(batches)} samples and accumulation_steps={parts}, the model is "
        f"trained on {seen[uneven[0]]['sizes']} samples at a time. Split each batch into that many "
        "microbatches, or into as many as it has samples, of sizes that differ by at most one."
    )
    return Diagnosis("accumulation-ignored", tuple(uneven), text, guide=GUIDE)


def _are_even(sizes: Sequence[int], counts: Sequence[int]) -> bool:
    """Return whether each batch has its number of parts, whose sizes differ by at most one."""
    left = list(sizes)
    batches = [[left.pop(0) for _ in range(min(count, len(left)))] for count in counts]
    return not left and all(batch and max(batch) - min(batch) <= 1 for batch in batches)
