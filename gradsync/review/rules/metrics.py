"""Metrics: a mean over all samples is not the mean of the ranks' means."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradsync.review.findings import Hit, any_part, at, rule, whole
from gradsync.review.flow.program import Program
from gradsync.review.flow.values import (
    DATA,
    EVAL,
    MAYBE_RANK,
    MEAN,
    RANK,
    REDUCED,
    UNEVEN,
    Step,
)
from gradsync.review.queries import function_around, names_rank

_RANKS = re.compile("world_?size|num_replicas|num_ranks|n_ranks|nprocs", re.IGNORECASE)
_REPORTS = ("add_scalar", "info", "log", "write")  # methods
_LOGS = ("builtins.print", "wandb.log", "mlflow.log_metric", "mlflow.log_metrics", "logging.info")
_ALARM = re.compile(r"is_?nan|is_?inf|isfinite")
_EVALUATES = re.compile("eval|valid|test", re.IGNORECASE)


@rule(
    "DDP031",
    "The evaluation averages the ranks' means",
    topic="metrics count each sample once",
    remedy="Sum the totals and the counts over all ranks, then divide the total by the count.",
    applies=any_part,
    kind="possible mistake",
)
def mean_of_means(program: Program) -> Iterator[Hit]:
    """Find metrics that are divided on each rank, then averaged."""
    for step in program.steps:
        if step.collective != "all_reduce" or not step.args:
            continue
        tags = step.args[0].deep_tags()
        evaluates = step.evaluating or EVAL in tags or _EVALUATES.search(step.function)
        if MEAN in tags and DATA in tags and evaluates and _averages(step):
            yield at(
                step,
                "Each rank divides by its own number of samples, and then the means are averaged. "
                "If these numbers differ, the result is not the mean over all samples.",
                sure=UNEVEN in tags,  # with a DistributedSampler, all ranks have equally many
            )


def _averages(step: Step) -> bool:
    """Return whether the sum over ranks is divided by their number."""
    operation = step.argument(1, "op")
    if operation is not None and operation.path.endswith("AVG"):
        return True
    for node in ast.walk(function_around(step)):
        if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Div):
            by = node.value if isinstance(node, ast.AugAssign) else node.right
            if _RANKS.search(ast.unparse(by)):
                return True
    return False


@rule(
    "DDP040",
    "The metric of one rank's samples is reported",
    topic="metrics count each sample once",
    remedy="Sum the totals and the counts over all ranks before you report or compare the metric.",
    applies=whole,
)
def metric_of_one_rank(program: Program) -> Iterator[Hit]:
    """Find results of an evaluation of one share that are printed or choose a checkpoint."""
    trained = {loop for backward in program.backwards for loop in backward.loops}
    for step in program.steps:
        adapts = step.method == "step" and step.receiver.surely("scheduler")
        values = step.values if _reports(step) or adapts else []
        if step.path.endswith("torch.save"):
            values += [guard.value for guard in step.guards]
        if not step.on_some_ranks and names_rank(step):
            continue  # each rank reports its own value
        if any(loop.over.of_kind("loader") and loop not in trained for loop in step.loops):
            continue  # such as the progress of the evaluation
        if any(g.test is not None and _ALARM.search(ast.unparse(g.test)) for g in step.guards):
            continue  # a warning of this rank
        if any(EVAL in value.deep_tags() for value in values):
            yield at(
                step,
                "This value was computed from the samples of one rank only, because the loader has "
                "a DistributedSampler, and no collective combines it with the other ranks' values.",
            )
            return


@rule(
    "DDP048",
    "The result of `reduce` is used on other ranks",
    topic="metrics count each sample once",
    remedy="Use `all_reduce`, or use the result only on the destination rank.",
    applies=any_part,
)
def reduced_elsewhere(program: Program) -> Iterator[Hit]:
    """Find results of `reduce` that ranks other than its destination report or decide by."""
    for step in program.steps:
        values = step.values if _reports(step) else []
        tests = [guard.value.tags for guard in step.guards if guard.test is not None]
        deciding = not step.collective and any(REDUCED in tags for tags in tests)
        others = [guard.value for guard in step.guards if REDUCED not in guard.value.tags]
        named = "rank" in ast.unparse(step.node).lower()
        if named or any(value.tags & {RANK, MAYBE_RANK} for value in others):
            continue
        if deciding or any(REDUCED in value.deep_tags() for value in values):
            yield at(
                step,
                "Only the destination rank of `reduce` has the sum. On the other ranks, this value "
                "is something else.",
            )
            return


def _reports(step: Step) -> bool:
    """Return whether a call prints or logs its arguments."""
    return step.path in _LOGS or step.method in _REPORTS
