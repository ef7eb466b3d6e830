"""Mistakes in printing during training: only rank 0 should print, once or more per epoch."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gradsync.records import Diagnosis
from gradsync.text import counted, ranks_text
from support.rules.findings import found
from support.rules.histories import HISTORY, Row, Run

EPOCH = re.compile(r"\bepoch\W{0,4}\d", re.IGNORECASE)
NUMBER = re.compile(r"(?<![\w.])\d+\.(\d{2,}|\d+(?= ?%))(?![\w.:])")


def other_lines(seen: Run, errors: Sequence[str], epochs: int, guide: str) -> Diagnosis | None:
    """Recognise output of ranks other than 0, or fewer lines of rank 0 than epochs.

    Args:
        seen: a training run over `epochs` epochs.
        errors: by rank, what was printed to stderr, which may include torch's warnings.
        epochs: the number of epochs.
        guide: the heading of GUIDELINES.md on the training.
    """
    histories = [value["history"][:epochs] for value in seen]  # further entries are wrong
    on_stderr = [
        [line for line in text.splitlines() if _shows_an_epoch(line, rows)]
        for rows, text in zip(histories, errors, strict=True)
    ]
    printed = [value["lines"] for value in seen]
    printing = [rank for rank in range(1, len(seen)) if printed[rank] or on_stderr[rank]]
    if printing:
        line = (printed[max(printing)] or on_stderr[max(printing)])[0]
        text = (
            f"{ranks_text(printing).capitalize()} printed during training, for example "
            f"{line!r}. With hundreds of ranks, such output is unreadable. Print only if `rank` "
            "is 0; the local rank is 0 on each node."
        )
        return found("every-rank-prints", text, guide, printing)
    lines = len(printed[0] or on_stderr[0])
    if lines < epochs:
        text = (
            f"Rank 0 printed {counted(lines, 'line')} during {counted(epochs, 'epoch')}. Print at "
            "least one line for each epoch; a header or a summary is allowed too."
        )
        return found("every-rank-prints", text, guide, [0])
    return None


def _shows_an_epoch(line: str, history: Sequence[Row]) -> bool:
    """Return whether a line contains an epoch, or a number of the history, rounded as printed.

    torch's warnings contain neither.
    """
    if EPOCH.search(line):
        return True
    numbers = [row[name] for row in history for name in HISTORY if name in row]
    return any(
        abs(float(f"{scale * number:.{len(match[1])}f}") - float(match[0])) < 1e-9
        for match in NUMBER.finditer(line)
        for number in numbers
        for scale in (1, 100)
    )
