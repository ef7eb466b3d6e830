"""Mistakes in the history that a training returns, known by its entries on each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from gradsync.diagnose.values import close
from gradsync.records import Diagnosis
from gradsync.text import ranks_text

HISTORY = {
    "train_loss": "the mean loss over the samples trained on, as they were when each batch came",
    "val_loss": "the loss over the validation samples after the epoch's training",
    "val_accuracy": "the accuracy, from 0 to 1, over the validation samples after the training",
}
KEYS = {"epoch", *HISTORY}
MEAN_OF_MEANS = "the mean of its steps' means"
Run = Sequence[Mapping[str, Any]]
Row = Mapping[str, float]  # of a history


def other_rows(thrice: Run, guide: str) -> Diagnosis | None:
    """The history of three epochs has other entries than the contract's, or lacks a key."""
    without = [rank for rank, value in enumerate(thrice) if not value["history"]]
    if 0 < len(without) < len(thrice):
        text = f"train returns no entry on {ranks_text(without)}: the history is for every rank"
        return _found("only-one-rank-has-it", text, guide, without)
    for value in thrice:
        rows = value["history"]
        keys = next((sorted(row) for row in rows if not set(row) >= KEYS), None)
        if keys is None and [row["epoch"] for row in rows] == [0, 1, 2]:
            continue
        if keys is not None:
            has = f"entries with the keys {', '.join(keys)}" if keys else "entries that are None"
        else:
            epochs = ", ".join(f"{row['epoch']:g}" for row in rows)
            has = f"entries of the epochs {epochs}" if epochs else "no entries"
        text = (
            f"train over 3 epochs returns {has}: one an epoch is wanted, counted from 0, "
            f"with {', '.join(sorted(KEYS))}; more keys are allowed"
        )
        return _found("wrong-signature", text, guide)
    return None


def kept_from_earlier_calls(runs: Sequence[Run], guide: str) -> Diagnosis | None:
    """The history of a call begins with what an earlier call in the same process returned."""
    for earlier, later in pairwise(runs):
        pairs = [(a["history"], b["history"]) for a, b in zip(earlier, later, strict=True)]
        kept = [r for r, (a, b) in enumerate(pairs) if a and len(b) > len(a) and b[: len(a)] == a]
        if kept:
            entries = len(pairs[kept[0]][0])
            text = (
                f"train returns a history whose first {entries} entries are those of an earlier "
                "call: each call returns a new list, of the epochs that it ended. A list that is "
                "a parameter's default, or belongs to the module, is the same in every call"
            )
            return _found("wrong-signature", text, guide, kept)
    return None


def other_numbers(
    seen: Run,
    right: Sequence[Row],
    steps: Sequence[Sequence[float]],
    before: float,
    *,
    guide: str,
    evaluation: str,
) -> Diagnosis | None:
    """The numbers of an epoch are not those of one process.

    Args:
        seen: with an entry for each epoch.
        right: these epochs' entries.
        steps: the losses of each epoch's steps.
        before: the loss over the validation samples before the training.
        guide: the heading of GUIDELINES.md on the training.
        evaluation: the one on the validation samples.
    """
    for epoch, wanted in enumerate(right):
        rows = [value["history"][epoch] for value in seen]
        for name, meaning in HISTORY.items():
            wrong = [rank for rank, row in enumerate(rows) if not close(row[name], wanted[name])]
            if not wrong:
                continue
            number = rows[wrong[0]][name]
            known = {
                f"that of epoch {epoch - 1}": right[epoch - 1][name] if epoch else None,
                "that of the model before it": before,
                "that of its first step": steps[epoch][0],
                "that of its last step": steps[epoch][-1],
                MEAN_OF_MEANS: sum(steps[epoch]) / len(steps[epoch]),
                **{f"`{other}`": wanted[other] for other in HISTORY if other != name},
            }
            what = next((what for what, its in known.items() if close(number, its)), None)
            text = (
                f"`{name}` of epoch {epoch} is {number:.6g} on rank {wrong[0]}: that is not "
                f"{meaning}{'' if what is None else f', but {what}'}"
            )
            code = "mean-of-means" if what == MEAN_OF_MEANS else "differs-from-single-process"
            return _found(code, text, guide if name == "train_loss" else evaluation, wrong)
    return None


def _found(code: str, text: str, guide: str, ranks: Sequence[int] = ()) -> Diagnosis:
    return Diagnosis(code, tuple(ranks), f"{text}", guide=guide)
