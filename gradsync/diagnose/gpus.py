"""Mistakes that show on a machine with GPUs, known by what a rank would take, or leave, there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradsync.records import Diagnosis

GUIDE = "Launching ranks"


def idle_gpus(seen: Mapping[str, Any], local_rank: int) -> Diagnosis | None:
    """Judge what `gradsync.probes.gpus` tells of rank 0 of its world, with that local rank."""
    return (
        another_gpu([*seen["pinned"], *(seen["returned"] or [])], local_rank)
        or on_the_cpu(seen["returned"])
        or on_gloo(seen["backends"])
    )


def batch_not_moved(seen: Mapping[str, Any], guide: str) -> Diagnosis | None:
    """Judge what `gradsync.probes.elsewhere` tells of what a step gives to whom."""
    takers = {"inputs": "the model", "targets": "the loss function"}
    unasked = [taker for part, taker in takers.items() if not seen["at_home"][part]]
    if unasked:
        text = (
            f"train_step does not ask {' and '.join(unasked)} that it is given: whoever calls it "
            "has chosen them"
        )
        return Diagnosis("setting-ignored", (0,), text, guide=guide)
    left = [part for part in takers if set(seen["away"][part]) - {"cpu"}]
    if not left:
        return None
    if "cuda" in seen["away"][left[0]]:
        text = (
            "train_step moves the batch to a GPU where there is one, and the model was on the CPU "
            "still: where the batch belongs is told by the model's own parameters, and by nothing "
            "else"
        )
        return Diagnosis("wrong-device", (0,), text, guide=guide)
    text = (
        f"train_step gives {takers[left[0]]} the {left[0]} where the loader left them. The model "
        "may be on a GPU, and both parts of a batch have to come to where it is: a tensor's `to` "
        "returns the moved one, and the tensor itself stays where it was"
    )
    return Diagnosis("wrong-device", (0,), text, guide=guide)


def another_gpu(devices: Sequence[str], local_rank: int) -> Diagnosis | None:
    """Judge the CUDA devices that it set or returned; `cuda` is the one that was set, or the first.

    Others than CUDA devices are left out.
    """
    named = [device for device in devices if device.startswith("cuda")]
    wrong = [device for device in named if device not in ("cuda", f"cuda:{local_rank}")]
    if not wrong and set(named) != {"cuda"}:
        return None
    taken = wrong[0] if wrong else "`cuda`, without a number, which is the first of them"
    text = (
        f"where there are GPUs, the rank whose `local_rank` is {local_rank} takes {taken}: a "
        "machine's ranks share its GPUs by their number on it, `local_rank`, and no other number"
    )
    return Diagnosis("wrong-device", (0,), text, guide=GUIDE)


def on_the_cpu(returned: Sequence[str] | None) -> Diagnosis | None:
    """Judge the device that it returned, if it came that far, on a machine with GPUs."""
    if not returned or not returned[0].startswith("cpu"):
        return None
    text = (
        "where there are GPUs, setup_distributed returns the CPU: the rank's device is then the "
        "GPU whose number is `local_rank`"
    )
    return Diagnosis("wrong-device", (0,), text, guide=GUIDE)


def on_gloo(backends: Sequence[str]) -> Diagnosis | None:
    """Judge the backend that it took by itself; "" leaves the choice to torch, which takes nccl."""
    if not backends or backends[0] == "" or "nccl" in backends[0]:
        return None
    text = (
        f"where there are GPUs and `backend` is None, setup_distributed takes {backends[0]}: the "
        "ranks' tensors are on GPUs then, which nccl is for"
    )
    return Diagnosis("wrong-device", (0,), text, guide=GUIDE)
