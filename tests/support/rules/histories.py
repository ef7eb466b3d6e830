"""Mistakes in the history that `train` returns, recognised by its entries on each rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from gradsync.records import Diagnosis
from gradsync.testing.values import close
from gradsync.text import listed, ranks_text
from support.rules.findings import found

HISTORY = {
    "train_loss": "the mean loss over the training samples, computed before the step of each batch",
    "val_loss": "the loss over the validation samples after the epoch's training",
    "val_accuracy": "the accuracy, from 0 to 1, over the validation samples after the training",
}
KEYS = {"epoch", *HISTORY}
MEAN_OF_MEANS = "the mean of the batches' mean losses"
Run = Sequence[Mapping[str, Any]]
Row = Mapping[str, float]  # of a history


def other_rows(thrice: Run, guide: str) -> Diagnosis | None:
    """Recognise a history of three epochs with wrong entries or missing keys."""
    without = [rank for rank, value in enumerate(thrice) if not value["history"]]
    if 0 < len(without) < len(thrice):
        text = (
            f"train returns an empty history on {ranks_text(without)}. It must return the history "
            "on every rank."
        )
        return found("only-one-rank-has-it", text, guide, without)
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
            f"With epochs=3, train returns {has}. It must return one entry for each epoch, counted "
            f"from 0, with the keys {listed(sorted(KEYS))}; more keys are allowed."
        )
        return found("wrong-signature", text, guide)
    return None


def kept_from_earlier_calls(runs: Sequence[Run], guide: str) -> Diagnosis | None:
    """Recognise a history that begins with the entries of an earlier call."""
    for earlier, later in pairwise(runs):
        pairs = [(a["history"], b["history"]) for a, b in zip(earlier, later, strict=True)]
        kept = [r for r, (a, b) in enumerate(pairs) if a and len(b) > len(a) and b[: len(a)] == a]
        if kept:
            entries = len(pairs[kept[0]][0])
            text = (
                f"train returns a history whose first {entries} entries come from an earlier "
                "call. Each call must return a new list with only its own epochs. A list that is a "
                "default argument or a global variable is shared by all calls."
            )
            return found("wrong-signature", text, guide, kept)
    return None


def other_numbers(
    seen: Run,
    right: Sequence[Row],
    others: Sequence[Mapping[str, float]],
    *,
    guide: str,
    evaluation: str,
) -> Diagnosis | None:
    """Recognise numbers of an epoch that differ from the numbers of one process.

    Args:
        seen: with an entry for each epoch.
        right: the right entries of these epochs.
        others: for each epoch, numbers that a mistake may give instead, by their description.
        guide: the heading of GUIDELINES.md on the training.
        evaluation: the heading on the validation samples.
    """
    for epoch, wanted in enumerate(right):
        rows = [value["history"][epoch] for value in seen]
        for name, meaning in HISTORY.items():
            wrong = [rank for rank, row in enumerate(rows) if not close(row[name], wanted[name])]
            if not wrong:
                continue
            number = rows[wrong[0]][name]
            known = {
                f"the value of epoch {epoch - 1}": right[epoch - 1][name] if epoch else None,
                **others[epoch],
                **{f"`{other}`": wanted[other] for other in HISTORY if other != name},
            }
            what = next((what for what, its in known.items() if close(number, its)), None)
            should = meaning if what is None else f"{meaning}, but it is {what}"
            text = (
                f"`{name}` of epoch {epoch} is {number:.6g} on rank {wrong[0]}. It should be "
                f"{should}."
            )
            if what == MEAN_OF_MEANS:
                text += " Weight each batch's loss by its number of samples."
            code = "mean-of-means" if what == MEAN_OF_MEANS else "differs-from-single-process"
            heading = guide if name == "train_loss" else evaluation
            return replace(found(code, text, heading, wrong), vague=what is None)
    return None
