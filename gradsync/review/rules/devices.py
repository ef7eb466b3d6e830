"""Devices: each rank on a machine needs its own device."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradsync.review.findings import Hit, at, rule, whole
from gradsync.review.flow.program import Program
from gradsync.review.flow.values import GLOBAL, LOCAL, MAYBE_RANK, WORLD, Step
from gradsync.review.queries import (
    argument_node,
    mentions,
    on_several_machines,
    share_files,
    surely_on_every_rank,
)

_INDEXED = re.compile(r"^(cuda|xpu):\d+$")
_PINS = (
    r"set_device|device_index|CUDA_VISIBLE_DEVICES|cuda\.device\(|set_default_device|gpu_affinity"
)


@rule(
    "DDP022",
    "All ranks use the same GPU",
    topic="the launcher decides ranks, port and device",
    remedy='Use the local rank: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`.',
    applies=whole,
)
def one_device_for_all(program: Program) -> Iterator[Hit]:
    """Find hard-coded GPUs, and programs that never choose a GPU."""
    if mentions(program, "CUDA_VISIBLE_DEVICES"):
        return
    named = False  # a variable with a GPU was reported; its later uses are skipped
    for step in program.steps:
        if not surely_on_every_rank(step) or _single_process(step):
            continue
        device = _fixed(step)
        if not device and not named:
            device = _fixed_in_a_variable(step)
            named = bool(device)
        if device:
            text = f"Every rank on a machine uses GPU {device}."
            yield at(step, text, sure=share_files(program))
    if mentions(program, _PINS):
        return
    for step in program.methods("cuda", "to"):
        if step.receiver.of_kind("model") and _any_gpu(step) and not _single_process(step):
            yield at(step, "No rank chooses its GPU, so all ranks on a machine use GPU 0.")
            return


@rule(
    "DDP036",
    "The rank among all ranks is used as a device number",
    topic="the launcher decides ranks, port and device",
    remedy='Use the local rank: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`.',
    applies=whole,
)
def rank_as_device(program: Program) -> Iterator[Hit]:
    """Find GPUs that are numbered by rank, which exceeds their number on a second machine."""
    if program.parent or mentions(program, "CUDA_VISIBLE_DEVICES"):
        return
    for step in program.calls("torch.cuda.set_device", "torch.xpu.set_device"):
        device = step.argument(0, "device")
        if device and GLOBAL in device.tags and not device.tags & {WORLD, LOCAL, MAYBE_RANK}:
            yield at(
                step,
                "This is the rank among all ranks. With several machines, the ranks of the second "
                "machine get numbers of GPUs that it does not have.",
                sure=on_several_machines(program),
            )
            return


def _single_process(step: Step) -> bool:
    return any(WORLD in guard.value.tags for guard in step.guards)


def _fixed(step: Step) -> str:
    """Return the number of a GPU that is written in the call; "" if there is none."""
    devices: list[ast.expr | None] = []
    if step.method == "to" or step.path == "torch.device":
        devices = [argument_node(step, 0, "device"), *_inside(argument_node(step, 0, "device"))]
    elif step.method == "cuda" or step.path == "torch.cuda.set_device":
        node = argument_node(step, 0, "device")
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return str(node.value)
        devices = [node]
    elif step.path.endswith("DistributedDataParallel"):
        node = argument_node(step, 1, "device_ids")
        if isinstance(node, ast.List) and len(node.elts) == 1:
            only = node.elts[0]
            return str(only.value) if isinstance(only, ast.Constant) else ""
    for device in devices:
        if isinstance(device, ast.Constant) and _INDEXED.match(str(device.value)):
            return str(device.value).partition(":")[2]
    return ""


def _fixed_in_a_variable(step: Step) -> str:
    """Return the number of the GPU in a variable that a model is moved to; "" if there is none."""
    device = step.argument(0, "device") if step.method == "to" else None
    known = device is not None and step.receiver.of_kind("model")
    found = str(device.const) if device is not None and known else ""
    return found.partition(":")[2] if _INDEXED.match(found) else ""


def _inside(node: ast.expr | None) -> list[ast.expr]:
    return [node.body, node.orelse] if isinstance(node, ast.IfExp) else []


def _any_gpu(step: Step) -> bool:
    """Return whether this moves a model to a GPU without naming its number."""
    if step.method == "cuda":
        return not step.node.args and not step.node.keywords
    node = argument_node(step, 0, "device")
    return isinstance(node, ast.Constant) and node.value == "cuda"
