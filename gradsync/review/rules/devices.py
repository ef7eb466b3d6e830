"""Devices: each rank on a machine needs its own device."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradsync.review.findings import Hit, at, rule, whole
from gradsync.review.flow.program import Program
from gradsync.review.flow.values import GLOBAL, LOCAL, MAYBE_RANK, RANK, WORLD, Step, Value
from gradsync.review.queries import (
    any_number_of_machines,
    argument_node,
    mentions,
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
    if len({device for step in program.steps if (device := _number(step))}) > 1:
        return  # parts of a model are on several GPUs
    for step in program.steps:
        device = _fixed(step) if surely_on_every_rank(step) and not _single_process(step) else ""
        if device:
            text = f"Every rank on a machine uses GPU {device}."
            # Slurm can give each of its tasks a GPU, which is then GPU 0 there.
            alone = device == "0" and mentions(program, "SLURM_")
            yield at(step, text, sure=share_files(program) and not alone)
            return
    if mentions(program, _PINS) or not program.backwards or any(map(_by_rank, program.steps)):
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
                sure=any_number_of_machines(program),
            )
            return


def _single_process(step: Step) -> bool:
    return any(WORLD in guard.value.tags for guard in step.guards)


def _fixed(step: Step) -> str:
    """Return the number of a GPU that is written in the program; "" if there is none."""
    if step.path.endswith("DistributedDataParallel"):
        node = argument_node(step, 1, "device_ids")
        only = node.elts[0] if isinstance(node, ast.List) and len(node.elts) == 1 else None
        return str(only.value) if isinstance(only, ast.Constant) else ""
    node = argument_node(step, 0, "device")
    if isinstance(node, (ast.Name, ast.Attribute)) and not step.receiver.of_kind("model"):
        return ""  # the variable is also used where it matters
    return _number(step)


def _number(step: Step) -> str:
    """Return the number of the GPU to which a call moves something, such as "cuda:1"."""
    if step.method not in ("to", "cuda") and step.path != "torch.cuda.set_device":
        return ""
    device = (step.argument(0, "device") or Value()).const
    if isinstance(device, int) and not isinstance(device, bool) and step.method != "to":
        return str(device)
    return str(device).partition(":")[2] if _INDEXED.match(str(device)) else ""


def _by_rank(step: Step) -> bool:
    """Return whether this moves something to the GPU of a rank."""
    return step.method in ("to", "cuda") and any(RANK in arg.tags for arg in step.args)


def _any_gpu(step: Step) -> bool:
    """Return whether this moves a model to a GPU without naming its number."""
    if step.method == "cuda":
        return not step.node.args and not step.node.keywords
    device = step.argument(0, "device")
    return device is not None and device.const == "cuda"
