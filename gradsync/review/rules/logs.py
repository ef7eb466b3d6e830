"""Logs: lines and runs that every rank prints or records."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradsync.review.findings import Hit, at, rule, whole
from gradsync.review.flow.program import Program
from gradsync.review.flow.values import MAYBE_RANK, RANK, Step
from gradsync.review.queries import surely_on_every_rank

_RUNS = ("wandb.init", "mlflow.start_run", "SummaryWriter", "trackio.init")


@rule(
    "DDP014",
    "Every rank writes the same log",
    topic="one rank logs",
    remedy="Log on one rank: `if dist.get_rank() == 0:`.",
    applies=whole,
)
def logs_on_every_rank(program: Program) -> Iterator[Hit]:
    """Find runs that all ranks record, and lines that all ranks print in the training loop."""
    for step in program.calls(*_RUNS):
        if surely_on_every_rank(step) and not _names_rank(step):
            what = step.path.rpartition(".")[2]
            yield at(step, f"Every rank calls `{what}`, which makes N runs or logs instead of one.")
    if _replaces_print(program):
        return
    training = {id(step.loops[0]) for step in program.backwards if step.loops}
    seen = set()
    for step in program.calls("builtins.print"):
        if not step.loops or id(step.loops[0]) not in training or "file" in step.kwargs:
            continue
        if step.function in seen or not surely_on_every_rank(step) or _names_rank(step):
            continue
        seen.add(step.function)
        yield at(step, "Every rank prints this line in each iteration of the training loop.")


def _names_rank(step: Step) -> bool:
    values = (*step.args, *step.kwargs.values())
    return any(value.deep_tags() & {RANK, MAYBE_RANK} for value in values)


def _replaces_print(program: Program) -> bool:
    """Return whether the script replaces `print` on the other ranks, or prints nothing there."""
    for source in program.sources:
        for node in source.nodes:
            if isinstance(node, (ast.Assign, ast.FunctionDef)):
                targets = node.targets if isinstance(node, ast.Assign) else []
                names = {getattr(t, "attr", getattr(t, "id", "")) for t in targets}
                if {"print", "stdout"} & names or getattr(node, "name", "") == "print":
                    return True
    return False
