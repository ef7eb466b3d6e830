"""Batches: the batch size of one rank, and the batch size of all ranks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradsync.review.findings import Hit, at, data_parallel, rule
from gradsync.review.flow.program import Program
from gradsync.review.flow.values import WORLD, Step
from gradsync.review.queries import (
    argument_node,
    function_around,
    has_distributed_sampler,
    same_text,
)

_OF_ALL = re.compile(r"(^|_)(global|total|effective)_(\w+_)?batch(_?size)?$", re.IGNORECASE)


@rule(
    "DDP008",
    "The batch size of all ranks is confused with the batch size of one rank",
    topic="each loader has the batch size of one rank",
    remedy="Divide the batch size by the number of ranks.",
    applies=data_parallel,
)
def batch_of_all_ranks(program: Program) -> Iterator[Hit]:
    """Find loaders with the batch size of all ranks, and step counts that ignore the ranks."""
    for loader in program.things("loader"):
        step = loader.step
        if step is None or not has_distributed_sampler(step):
            continue
        size, node = step.argument(1, "batch_size"), argument_node(step, 1, "batch_size")
        name = getattr(node, "attr", getattr(node, "id", ""))
        if size is not None and _OF_ALL.search(name) and WORLD not in size.tags:
            yield at(
                step,
                f"This rank's loader has the batch size `{name}`, so all N ranks together use N "
                "times as many samples in a step.",
            )
        yield from _steps_without_ranks(step)


def _steps_without_ranks(loader: Step) -> Iterator[Hit]:
    """Yield `len(dataset) // batch_size` near a loader that has a share of the dataset."""
    dataset, size = argument_node(loader, 0, "dataset"), argument_node(loader, 1, "batch_size")
    around = function_around(loader)
    divided = {
        id(node.left)
        for node in ast.walk(around)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv))
    }
    for node in ast.walk(around):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Div, ast.FloorDiv)):
            continue
        counted = node.left
        if not (isinstance(counted, ast.Call) and getattr(counted.func, "id", "") == "len"):
            continue
        same = counted.args and same_text(counted.args[0], dataset) and same_text(node.right, size)
        if same and id(node) not in divided:
            yield Hit(
                node,
                loader.source,
                "This counts the batches of the complete dataset. Each rank has only its share, "
                "with N times fewer batches.",
                "Use `len(loader)`, or divide by the number of ranks.",
                loader.function,
            )
