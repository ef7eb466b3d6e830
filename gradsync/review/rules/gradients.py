"""Gradients: sums, means, accumulation and clipping."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradsync.review.findings import Hit, any_part, at, data_parallel, rule, whole
from gradsync.review.flow.program import Program
from gradsync.review.flow.values import (
    CUT,
    DATA,
    GRAD,
    WORLD,
    Guard,
    Step,
    Value,
)
from gradsync.review.queries import (
    facts_agree,
    function_around,
    has_distributed_sampler,
    is_true,
    mentions,
    training_loops,
)

_DIVISIONS = ("div", "div_", "mul", "mul_", "true_divide", "true_divide_")
_CLIPS = ("clip_grad_norm_", "clip_grad_value_")
_AVERAGES = (
    "all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "all_gather", "gather",
)  # fmt: skip
_OTHER_WAYS = (
    r"_hook\(|deepspeed|horovod|hvd\.|[Aa]ccelerat|[Ll]ightning|parallelize|average_grad|sync_grad|"
    r"[Ff]abric|apex|colossal|bagua|average_model|broadcast_object_list|recv\(|dist\w*\.Reducer\("
)
_RANKS = re.compile("world|size|replicas|ranks|nprocs|num_")


@rule(
    "DDP028",
    "Gradients are summed, not averaged",
    topic="gradients are averaged",
    remedy="Divide by `dist.get_world_size()`.",
    applies=lambda program: bool(program.averages_by_hand),
)
def never_divided(program: Program) -> Iterator[Hit]:
    """Find all-reduces of gradients whose sum is never divided."""
    for step in program.averages_by_hand:
        operation = step.argument(1, "op")
        if operation is not None and not operation.path.endswith("SUM"):
            continue
        if _divides(function_around(step)) or any(
            _divides(s.tree, _RANKS) for s in program.sources
        ):
            continue
        if any(WORLD in step.args[0].tags for step in program.methods(*_DIVISIONS) if step.args):
            continue
        yield at(
            step,
            "all_reduce computes the sum over all ranks, which is never divided: the step is N "
            "times too large.",
        )


def _divides(tree: ast.AST, by: re.Pattern[str] | None = None) -> bool:
    """Return whether code divides or scales by a value whose text matches `by`, if given."""
    for node in ast.walk(tree):
        left: ast.AST | None = None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            left, right = node.left, node.right
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Div, ast.Mult)):
            left, right = node.target, node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            left, right = node.func.value, node.args[-1]
            if node.func.attr not in _DIVISIONS:
                continue
        if left is not None and (
            by is None or by.search(ast.unparse(right)) or "grad" in ast.unparse(left)
        ):
            return True
    return False


@rule(
    "DDP034",
    "Gradients are never averaged",
    topic="gradients are averaged",
    remedy="Wrap the model: `DistributedDataParallel(model)`, and call the wrapped model.",
    applies=whole,
)
def never_averaged(program: Program) -> Iterator[Hit]:
    """Find programs whose ranks train on different samples, each for itself."""
    sharded = [x for x, _ in training_loops(program) if x.step and has_distributed_sampler(x.step)]
    if not sharded or program.data_parallel or mentions(program, _OTHER_WAYS):
        return
    if any(step.collective in _AVERAGES and not _is_metric(step) for step in program.steps):
        return
    for step in program.backwards:
        outputs = [t for v in (step.receiver, *step.args) for t in v.deep() if t.kind == "output"]
        known = all(t.inner.surely("model", "compiled") for t in outputs)
        if outputs and known and not any(m.escaped for t in outputs for m in t.inner.things):
            yield at(
                step,
                "Each rank trains on its own share of the samples, but no gradient is averaged: "
                "the ranks train different models, and only one of them is saved.",
            )
            return


def _is_metric(step: Step) -> bool:
    """Return whether a collective certainly reduces something else than a gradient."""
    value = step.args[0] if step.args else Value()
    return DATA in value.deep_tags() and GRAD not in value.deep_tags()


@rule(
    "DDP045",
    "No gradient flows through a collective",
    topic="gradients are averaged",
    remedy="Reduce a detached copy of a loss. In a loss of all ranks' outputs, put this rank's own "
    "output back: `parts[rank] = output`.",
    applies=any_part,
)
def gradient_is_cut(program: Program) -> Iterator[Hit]:
    """Find losses that a collective has computed before their backward pass."""
    for step in program.backwards:
        if CUT not in step.receiver.tags.union(*(arg.tags for arg in step.args)):
            continue
        cuts = [s for s in program.steps if s.cuts_gradient and program.before(s, step)]
        if cuts:
            yield at(
                cuts[-1],
                f"Autograd does not know `{cuts[-1].collective}`, so the backward pass in line "
                f"{step.node.lineno} ignores that this value depends on all ranks.",
            )
            return


@rule(
    "DDP047",
    "A step communicates or waits more than it needs",
    topic="each step communicates once",
    remedy="Leave it out, or do it less often.",
    applies=data_parallel,
    kind="cost",
)
def costs_of_a_step(program: Program) -> Iterator[Hit]:
    """Find searches for unused parameters, and barriers and averages of gradients in each step."""
    training = {step.loops[-1] for step in program.backwards if step.loops}
    for step in program.steps:
        if is_true(step.kwargs.get("find_unused_parameters")):
            yield at(step, "After each forward pass, the wrapper searches for unused parameters.")
        elif (
            step.collective == "barrier" and training & set(step.loops) and not _now_and_then(step)
        ):
            yield at(step, "Every step waits for the slowest rank once more.")
    no_sync = any(program.things("no_sync")) or mentions(program, "require_backward_grad_sync")
    for step in program.methods("step"):
        microbatch = next((guard for guard in step.guards if _counts(guard)), None)
        optimizer = step.receiver.of_kind("optimizer", "scaler")
        if optimizer and microbatch and training & set(step.loops) and not no_sync:
            yield at(
                step,
                "The gradients are averaged after each microbatch, but used only here.",
                "Run all microbatches but the last one in `with model.no_sync():`.",
            )
            return


def _now_and_then(step: Step) -> bool:
    """Return whether a condition is inside the innermost loop around a call."""
    first = step.loops[-1].node.lineno
    return any(isinstance(g.node, ast.If) and g.node.lineno > first for g in step.guards)


def _counts(guard: Guard) -> bool:
    """Return whether a condition is true in every n-th step: `(step + 1) % n == 0`."""
    test = guard.test
    return isinstance(test, ast.Compare) and any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) for node in ast.walk(test)
    )


@rule(
    "DDP029",
    "`no_sync` is never left",
    topic="gradients are averaged",
    remedy="Run the last microbatch's forward and backward outside of `no_sync()`.",
    applies=lambda program: bool(program.things("no_sync")),
)
def never_synchronised(program: Program) -> Iterator[Hit]:
    """Find accumulated gradients that are never averaged."""
    left = any(step.receiver.of_kind("no_sync") for step in program.methods("__exit__"))
    for step in program.methods("__enter__"):
        if step.receiver.surely("no_sync") and not left:
            yield at(step, "`no_sync` is entered and never left: no later gradient is averaged.")
            return
    inside = [step for step in program.backwards if _without_sync(step)]
    if inside and len(inside) == len(program.backwards):
        yield at(
            inside[0],
            "Every backward runs inside `no_sync()`, so the gradients are never averaged, and the "
            "ranks' models become different.",
        )
        return
    for step in program.methods("step"):
        if step.receiver.of_kind("optimizer") and _without_sync(step):
            yield at(
                step,
                "The optimizer steps inside `no_sync()`, with only this rank's own gradients.",
            )


def _without_sync(step: Step) -> bool:
    return any(value.surely("no_sync") for value in step.contexts)


@rule(
    "DDP038",
    "Scaled gradients are clipped",
    topic="gradients are averaged",
    remedy="Call `scaler.unscale_(optimizer)` before clipping.",
    applies=lambda program: bool(program.things("scaler")),
)
def clipped_while_scaled(program: Program) -> Iterator[Hit]:
    """Find gradients that are clipped before `GradScaler` divides them by its scale."""
    unscaled = {step.run for step in program.methods("unscale_")}
    steps = [step for step in program.methods("step") if step.receiver.of_kind("scaler")]
    for clip in program.steps:
        if clip.path.rpartition(".")[2] not in _CLIPS or clip.run in unscaled:
            continue
        later = [s for s in steps if program.before(clip, s) and s.function == clip.function]
        if later and facts_agree(clip, later[0]):
            yield at(
                clip,
                "These gradients are still multiplied by the scale of the GradScaler, so that "
                "almost every step is clipped to a length that is far too small.",
            )
            return


@rule(
    "DDP030",
    "Gradients are clipped or unscaled before they are averaged",
    topic="gradients are averaged",
    remedy="Average first, then unscale and clip.",
    applies=any_part,
)
def clipped_too_early(program: Program) -> Iterator[Hit]:
    """Find gradients that each rank clips or unscales before they are averaged."""
    averages = {step.index for step in program.averages_by_hand}
    for position, step in enumerate(program.steps):
        clips = step.path.rpartition(".")[2] in _CLIPS or step.method == "unscale_"
        if clips and averages and _averaged_later(program, position, averages):
            yield at(
                step,
                "Each rank clips or unscales its own gradients here, and they are averaged only "
                "afterwards.",
            )
        params = step.args[0] if step.args else None
        sharded = (params or Value()).of_kind("params") if step.path.endswith("norm_") else []
        if any(thing.inner.surely("fsdp") for thing in sharded):
            yield at(
                step,
                "With FullyShardedDataParallel, this rank has only a shard of the gradients, so "
                "this is the norm of the shard.",
                "Call the wrapper's own method: `model.clip_grad_norm_(max_norm)`.",
            )


def _of_another(average: Step, clip: Step) -> bool:
    """Return whether an all-reduce after a clip is of one parameter: `temperature.grad`."""
    beside = average.function == clip.function and len(average.loops) <= len(clip.loops)
    return beside and ast.unparse(average.node.args[0]).endswith((".grad", ".grad.data"))


def _averaged_later(program: Program, position: int, averages: set[int]) -> bool:
    """Return whether an all-reduce of gradients comes before the next optimizer step."""
    here = program.steps[position]
    for step in program.steps[position + 1 :]:
        if step.run != here.run or step.method == "backward":
            return False
        if step.method == "step" and (
            step.receiver.of_kind("optimizer", "scaler") or not step.path
        ):
            return False
        if step.index in averages and not _of_another(step, here):
            return not any(WORLD in guard.value.tags for guard in here.guards)
    return False
