"""Models: the order of moving, converting, wrapping and compiling."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradsync.review.findings import Hit, any_part, at, data_parallel, rule
from gradsync.review.flow.program import Program
from gradsync.review.flow.torch_api import METHODS
from gradsync.review.flow.values import Step, Thing
from gradsync.review.queries import argument_node, batch_norms, facts_agree, mentions, models_of

_MOVES = ("to", "cuda", "half", "double", "float", "bfloat16", "to_empty", "xpu")


@rule(
    "DDP023",
    "The model is converted after wrapping",
    topic="the model is ready before it is wrapped",
    remedy="Convert the model first, then wrap it.",
    applies=any_part,
    kind="possible mistake",
)
def changed_after_wrapping(program: Program) -> Iterator[Hit]:
    """Find wrapped models that get a new type or new layers."""
    for step in program.methods(*_MOVES):
        if step.receiver.surely("ddp") and _converts(step):
            yield at(
                step,
                f"`{step.method}` changes the model after DistributedDataParallel has built its "
                "buckets for the old parameters.",
            )
    for step in program.calls("convert_sync_batchnorm"):
        if step.args and step.args[0].surely("ddp"):
            yield at(
                step,
                "The BatchNorm layers are replaced after wrapping, but the wrapper was made for "
                "the old layers.",
            )


def _converts(step: Step) -> bool:
    """Return whether a call changes the type of the parameters."""
    types = ("torch.float", "torch.bfloat", "torch.half", "torch.double")
    moves = step.method in ("to", "cuda", "xpu")
    return not moves or any(value.path.startswith(types) for value in step.values)


@rule(
    "DDP039",
    "FSDP2 is used in the wrong order",
    topic="the model is ready before it is wrapped",
    remedy="Shard the layers first and the model last, and call `model(inputs)`.",
    applies=lambda program: bool(program.sharded),
)
def sharded_in_the_wrong_order(program: Program) -> Iterator[Hit]:
    """Find layers that are sharded after their model, and forward passes without the hooks."""
    roots: dict[str, Step] = {}
    for step in program.sharded:
        node = argument_node(step, 0, "module")
        loop = step.loops[-1].node if step.loops else None
        root = ast.unparse(loop.iter) if isinstance(loop, ast.For) else ""
        earlier = [s for n, s in roots.items() if re.search(rf"(?<![\w.]){re.escape(n)}\b", root)]
        beside = (s for s in earlier if (s.stack, s.run) == (step.stack, step.run))
        if any(facts_agree(other, step) for other in beside):
            yield at(
                step,
                "The model was sharded before its layers, so all of its parameters are already in "
                "one group, and each step gathers the complete model.",
            )
            return
        if node is not None:
            roots[ast.unparse(node)] = step
    for step in program.methods("forward"):
        models = {t for s in program.sharded if s.args for t in s.args[0].things}
        if models & step.receiver.things:
            yield at(
                step,
                "`forward` does not run the hooks of `fully_shard`, which gather the parameters.",
            )


@rule(
    "DDP024",
    "The model is moved or sharded after its optimizer is made",
    topic="the model is ready before its optimizer",
    remedy="Make the optimizer last, from the parameters of the finished model.",
    applies=any_part,
)
def changed_after_optimizer(program: Program) -> Iterator[Hit]:
    """Find optimizers that were made before the model was moved or sharded."""
    for optimizer in program.things("optimizer"):
        made = optimizer.step
        models = models_of(optimizer.inner)
        if made is None or not models:
            continue
        for step in program.steps:
            if not program.before(made, step) or step.run != made.run:
                continue
            sharded = step.path.rpartition(".")[2] in ("fully_shard", "FullyShardedDataParallel")
            if sharded and step.args and models & models_of(step.args[0]):
                yield at(
                    step,
                    "Sharding replaces the parameters, but the optimizer of line "
                    f"{made.node.lineno} updates the old ones, so the model is not trained.",
                )
            elif step.method in _MOVES and _moved_late(program, made, step, models):
                yield at(
                    step,
                    f"The optimizer of line {made.node.lineno} was made before this move. If it "
                    "already has state (Adagrad has, and others have after `load_state_dict`), "
                    "this state stays on the old device.",
                    sure=False,
                )


def _moved_late(program: Program, made: Step, step: Step, models: set[Thing]) -> bool:
    """Return whether a model moves between its optimizer and the training, in one function."""
    if (
        step.function != made.function
        or step.stack != made.stack
        or step.receiver.kinds() - {"model"}
    ):
        return False
    to_cpu = step.args and str(step.args[0].const) == "cpu"
    trained = any(program.before(backward, step) for backward in program.backwards)
    return bool(models & set(step.receiver.things)) and not to_cpu and not trained


@rule(
    "DDP025",
    "The model is compiled before it is wrapped",
    topic="the model is ready before it is wrapped",
    remedy="Wrap first: `torch.compile(DistributedDataParallel(model))`.",
    applies=data_parallel,
    kind="cost",
)
def compiled_first(program: Program) -> Iterator[Hit]:
    """Find models that are compiled before DistributedDataParallel makes its buckets."""
    for wrapper in program.things("ddp"):
        for compiled in wrapper.inner.of_kind("compiled"):
            if compiled.step is not None:
                yield at(
                    compiled.step,
                    "The model is compiled before DistributedDataParallel wraps it. All gradients "
                    "then become ready at the end of backward, and no all-reduce overlaps with it.",
                )


@rule(
    "DDP026",
    "BatchNorm uses the samples of one rank",
    topic="BatchNorm uses the batch of all ranks",
    remedy="Convert the model before wrapping: `nn.SyncBatchNorm.convert_sync_batchnorm(model)`.",
    applies=data_parallel,
    kind="possible mistake",
)
def local_batch_norm(program: Program) -> Iterator[Hit]:
    """Find wrapped models with BatchNorm layers that are not synchronised."""
    if mentions(program, "SyncBatchNorm|sync_batchnorm|sync_bn|SyncBN"):
        return
    layers = batch_norms(program)
    wrapper = next(iter(program.things("ddp")), None)
    if layers and wrapper is not None and wrapper.step is not None:
        yield at(
            wrapper.step,
            f"The model has BatchNorm (line {layers[0].node.lineno}). Each rank normalises with "
            "the mean and variance of its own batch, not of the batch of all ranks.",
        )


@rule(
    "DDP027",
    "Training calls the model without its wrapper",
    topic="gradients are averaged",
    remedy="Call the wrapped model.",
    applies=data_parallel,
)
def calls_the_inner_model(program: Program) -> Iterator[Hit]:
    """Find forward passes that do not use DistributedDataParallel."""
    wrapped = {t: w for w in program.things("ddp") for t in w.inner.of_kind("model", "compiled")}
    methods = {
        step.node: step
        for step in program.steps
        if step.method not in METHODS and wrapped.keys() & step.receiver.things
    }
    trained = [models_of(optimizer.inner) for optimizer in program.things("optimizer")]
    seen = set()
    for backward in program.backwards:
        for output in (*backward.receiver.deep(), *(t for a in backward.args for t in a.deep())):
            step = output.step
            if output.kind != "output" or step is None or step in seen or step.evaluating:
                continue
            seen.add(step)
            called = next((methods[node] for node in step.stack if node in methods), step)
            models = called.receiver if called is not step else output.inner
            inner = models.surely("model", "compiled") and len(models.things) == 1
            wrapper = wrapped.get(next(iter(models.things))) if inner else None
            made = wrapper.step if wrapper is not None else None
            if trained and all(trained) and not any({wrapper, *models.things} & t for t in trained):
                continue  # no optimizer has its parameters
            if made and program.before(made, called) and facts_agree(made, called):
                yield at(
                    called,
                    "This forward pass does not use DistributedDataParallel, so the gradients are "
                    "not averaged, and the ranks' models become different.",
                )
