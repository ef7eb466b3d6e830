"""Mistakes in sharded training: its history, batches and losses, compared with one process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from gradsync.records import Diagnosis
from gradsync.text import listed, ranks_text
from support.probes.language_models import KEYS, language_model
from support.rules.findings import found

GUIDE = "Training a transformer"
Run = Mapping[str, Any]  # of a rank: what `run_training` returns
Pairs = Sequence[Sequence[float]]  # loss and norm of each step


def together(seen: Sequence[Run]) -> list[list[int]]:
    """Return the sequences in each global batch."""
    steps = zip(*(run["given"] for run in seen), strict=False)
    return [sorted(number for own in step for number in own) for step in steps]


def one_process(
    seed: int,
    sequences: Any,
    batches: Sequence[Sequence[int]],
    settings: Mapping[str, Any],
    max_norm: float,
    *,
    zero: bool = True,
    clip: bool = True,
    learn: bool = True,
) -> list[list[float]]:
    """Train on these global batches in one process; return the loss and the norm of each step."""
    model = language_model(seed)
    names = ("lr", "betas", "eps", "weight_decay")
    optimizer = torch.optim.AdamW(model.parameters(), **{name: settings[name] for name in names})
    rows = torch.as_tensor(sequences)
    pairs = []
    for batch in batches:
        if zero:
            optimizer.zero_grad()
        tokens = rows[list(batch)]
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        limit = max_norm if clip else math.inf
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit).item()
        if learn:
            optimizer.step()
        pairs.append([loss.item(), norm])
    return pairs


def history_mistake(seen: Sequence[Run], first: int, steps: int) -> Diagnosis | None:
    """Judge the form of the histories, and whether all ranks agree and use AdamW.

    Args:
        seen: the runs of all ranks.
        first: the number of steps before this call.
        steps: the number of steps that this call must take.
    """
    for rank, run in enumerate(seen):
        missing = {key for entry in run["history"] for key in KEYS if key not in entry}
        if missing:
            text = f"The entries of the history lack {listed(sorted(missing))}."
            return found("wrong-signature", text, GUIDE, [rank])
        numbers = [round(entry["step"]) for entry in run["history"]]
        start = numbers[0] if numbers else 0
        if numbers != list(range(start, start + steps)) or start not in (first, first + 1):
            text = (
                f"Of {steps} steps after {first}, the history has the steps {numbers}. It must "
                "have one entry for each step of this call, numbered on from the earlier ones, "
                "which count towards `steps`."
            )
            return found("wrong-length", text, GUIDE, [rank])
        if not len(run["given"]) == len(run["optimizers"]) == steps:
            text = (
                f"In {steps} steps, the model computes {len(run['given'])} times in training "
                f"mode, and the optimizer steps {len(run['optimizers'])} times."
            )
            return found("wrong-length", text, GUIDE, [rank])
        kinds = {one["class"] for one in run["optimizers"]}
        if kinds != {"AdamW"}:
            return found(
                "wrong-optimizer", f"train uses {listed(kinds)}. Use AdamW.", GUIDE, [rank]
            )
        rates = {one["lr"] for one in run["optimizers"]}
        if rates != {run["lr"]}:
            text = (
                f"The optimizer steps with a learning rate of {listed(map(str, sorted(rates)))}, "
                f"but train is called with lr={run['lr']}."
            )
            return found("wrong-optimizer", text, GUIDE, [rank])
        if not all(entry["tokens_per_second"] > 0 for entry in run["history"]):
            text = "tokens_per_second must be above 0: the tokens of all ranks, by the step's time."
            return found("wrong-signature", text, GUIDE, [rank])
    return _local_losses(seen)


def _local_losses(seen: Sequence[Run]) -> Diagnosis | None:
    for column, code, text in (
        (0, "loss-is-local", "losses on {} differ. Return the mean loss over all ranks' tokens."),
        (
            1,
            "norm-of-one-shard",
            "norms on {} differ. Add up the squares of all ranks' parts, after `finish`.",
        ),
    ):
        own = [[[pair[column]] for pair in _pairs(run)] for run in seen]
        differ = [rank for rank, one in enumerate(own) if not _near(one, own[0])]
        if differ:
            ranks = ranks_text([0, *differ])
            return found(code, f"The {text.format(ranks)}", GUIDE, differ)
    return None


def _pairs(run: Run) -> list[list[float]]:
    return [[entry["loss"], entry["grad_norm"]] for entry in run["history"]]


def _near(own: Pairs, wanted: Pairs, tolerance: float = 1e-4) -> bool:
    return len(own) == len(wanted) and all(
        abs(a - b) <= tolerance * max(1, abs(b))
        for one, other in zip(own, wanted, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def seed_mistake(seen: Sequence[Run], others: Sequence[Run]) -> Diagnosis | None:
    """Judge whether runs that are alike but for the argument `seed` have other orders."""
    if together(seen) != together(others):
        return None
    text = "With another seed, the batches are the same. Pass the seed to the TokenLoader."
    return found("seed-ignored", text, GUIDE, range(len(seen)))


def scale_mistake(seen: Sequence[Run], exact: Sequence[Run]) -> Diagnosis | None:
    """Judge whether runs in float16 scale the loss, by the gradients of the logits in float32."""
    if all(run["upstream"] > 2 * one["upstream"] for run, one in zip(seen, exact, strict=True)):
        return None
    text = (
        "With compute_dtype=float16, the loss is not scaled before backward, so small gradients "
        "become zero. Use a LossScaler for the loss and the step."
    )
    return found("loss-not-scaled", text, GUIDE, range(len(seen)))


def norm_mistake(
    seen: Sequence[Run], exact: Sequence[Run], max_norm: float = 1.0
) -> Diagnosis | None:
    """Judge the norms in the first step taken in half precision, by those in float32.

    There is the norm in the history, and that of the gradients with which the optimizer steps.
    """
    histories = zip(seen[0]["history"], exact[0]["history"], strict=False)
    norms = [(one["grad_norm"], other["grad_norm"]) for one, other in histories]
    taken = [pair for pair in norms if math.isfinite(pair[0])]  # the others are skipped
    if not taken or not all(run["optimizers"] for run in seen):
        return None
    norm, wanted = taken[0]
    if not 0.5 * wanted < norm < 2 * wanted:
        text = (
            f"In half precision, grad_norm begins with {norm:.4g}, but with {wanted:.4g} in "
            "float32. It must be the norm before clipping, of "
            "gradients without the scale of the loss, and so must the one that clips."
        )
        return found("norm-of-one-shard", text, GUIDE, range(len(seen)))
    used = math.sqrt(sum(run["optimizers"][0]["squares"] for run in seen))
    limit = min(wanted, max_norm)  # replicated gradients are in `used` once for each rank
    if 0.5 * limit < used < 2 * math.sqrt(len(seen)) * limit:
        return None
    text = (
        f"In half precision, the optimizer first steps with gradients of the norm {used:.3g}, but "
        f"max_norm and the norm in float32 make it about {limit:.3g}. Compare a scaled norm with a "
        "scaled limit, or unscale the gradients before you clip."
    )
    return found("not-clipped", text, GUIDE, range(len(seen)))


def losses_mistake(
    seen: Sequence[Run],
    seed: int,
    sequences: Any,
    max_norm: float = 1.0,
    earlier: Sequence[Sequence[int]] = (),
) -> Diagnosis | None:
    """Judge losses and norms by those of one process on the same global batches.

    Args:
        seen: the runs of all ranks.
        seed: of rank 0's model.
        sequences: the tokens.
        max_norm: the limit of the norm.
        earlier: the global batches of the run that was resumed.
    """
    batches = [*earlier, *together(seen)]
    settings, skip = seen[0]["optimizers"][0], len(earlier)

    def alone(**options: bool) -> list[list[float]]:
        return one_process(seed, sequences, batches, settings, max_norm, **options)[skip:]

    def losses(pairs: Pairs) -> list[list[float]]:
        return [[pair[0]] for pair in pairs]

    own, right = _pairs(seen[0]), alone()
    begin = "The losses begin with {}, but those of one process with {}.".format(
        *([round(pair[0], 4) for pair in pairs[:3]] for pairs in (own, right))
    )
    everyone = range(len(seen))
    if _near(losses(own), losses(right)):
        if _near(own, right, 1e-3):
            return None
        text = (
            f"grad_norm begins with {[round(pair[1], 4) for pair in own[:3]]}, but should with "
            f"{[round(pair[1], 4) for pair in right[:3]]}: the norm of all gradients before "
            "clipping, without the scale of the loss."
        )
        return found("norm-of-one-shard", text, GUIDE, everyone)
    for options, code, text in (
        ({"zero": False}, "gradients-not-zeroed", "Gradients of earlier steps are not cleared."),
        ({"clip": False}, "not-clipped", "Gradients are not clipped to max_norm before the step."),
        (
            {"learn": False},
            "does-not-learn",
            "The model does not learn: are the gradients cleared between backward and the step?",
        ),
    ):
        if _near(losses(own), losses(alone(**options)), 1e-3):
            return found(code, f"{text} {begin}", GUIDE, everyone)
    first = next(i for i, pair in enumerate(own) if not _near([pair[:1]], [right[i][:1]]))
    code = "resume-lost" if skip and first == 0 else "differs-from-single-process"
    return found(code, f"{begin} They differ from step {first} on.", GUIDE, everyone)


def batches_mistake(
    batches: Sequence[Sequence[int]], count: int, world_size: int, batch_size: int
) -> Diagnosis | None:
    """Judge whether each epoch of `count` sequences uses none twice, and has its own order."""
    size = world_size * batch_size
    steps = count // size
    for start in range(0, len(batches), steps):
        used = [number for batch in batches[start : start + steps] for number in batch]
        if -1 in used or any(len(batch) != size for batch in batches):
            text = (
                "The model is given something else than the inputs of the sequences, row[:-1], in "
                f"batches of {batch_size} on each rank."
            )
            return found("tokens-misplaced", text, GUIDE)
        if len(set(used)) < len(used):
            text = (
                f"Epoch {start // steps} uses a sequence twice. Each rank must get its own batches "
                "of the epoch, from the TokenLoader."
            )
            return found("samples-repeated", text, GUIDE, range(world_size))
    if len(batches) >= 2 * steps and batches[:steps] == batches[steps : 2 * steps]:
        text = "Epoch 1 has the order of epoch 0. Set the epoch before each pass."
        return found("epoch-not-set", text, GUIDE, range(world_size))
    return None
