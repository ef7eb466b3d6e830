"""Mistakes that only matter on a machine with GPUs: the devices and backends used there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradsync.records import Diagnosis
from gradsync.text import listed

GUIDE = "Launching ranks"


def idle_gpus(seen: Mapping[str, Any], local_rank: int) -> Diagnosis | None:
    """Judge the report of `support.probes.gpus` on rank 0, with this local rank."""
    return (
        another_gpu([*seen["pinned"], *(seen["returned"] or [])], local_rank)
        or on_the_cpu(seen["returned"])
        or on_gloo(seen["backends"])
    )


def batch_not_moved(seen: Mapping[str, Any], guide: str) -> Diagnosis | None:
    """Judge the report of `support.probes.devices` on the devices of a step's batch."""
    takers = {"inputs": "the model", "targets": "the loss function"}
    unasked = [taker for part, taker in takers.items() if not seen["at_home"][part]]
    if unasked:
        text = (
            f"train_step does not call {listed(unasked)} that the caller passes. Use exactly the "
            "model and the loss function that are passed."
        )
        return Diagnosis("setting-ignored", (0,), text, guide=guide)
    left = [part for part in takers if set(seen["away"][part]) - {"cpu"}]
    if not left:
        return None
    if "cuda" in seen["away"][left[0]]:
        text = (
            "train_step moves the batch to a GPU although the model is on the CPU. Move the batch "
            "to the device of the model's parameters."
        )
        return Diagnosis("wrong-device", (0,), text, guide=guide)
    text = (
        f"train_step passes the {left[0]} to {takers[left[0]]} without moving them, but the model "
        "may be on a GPU. Move the inputs and the targets to the device of the model's parameters. "
        "A tensor's `to` returns the moved tensor and does not change the original one."
    )
    return Diagnosis("wrong-device", (0,), text, guide=guide)


def another_gpu(devices: Sequence[str], local_rank: int) -> Diagnosis | None:
    """Judge the CUDA devices that were set or returned.

    `cuda` without a number is the device that was set, or the first one. Other devices are ignored.
    """
    named = [device for device in devices if device.startswith("cuda")]
    wrong = [device for device in named if device not in ("cuda", f"cuda:{local_rank}")]
    if not wrong and set(named) != {"cuda"}:
        return None
    used = wrong[0] if wrong else "`cuda` without a number, which is the first GPU"
    text = (
        f"On a machine with GPUs, the rank with `local_rank` {local_rank} uses {used}. Each rank "
        "of a machine must use the GPU whose number is its `local_rank`."
    )
    return Diagnosis("wrong-device", (0,), text, guide=GUIDE)


def on_the_cpu(returned: Sequence[str] | None) -> Diagnosis | None:
    """Judge the returned device, if one was returned, on a machine with GPUs."""
    if not returned or not returned[0].startswith("cpu"):
        return None
    text = (
        "On a machine with GPUs, setup_distributed returns the CPU. It must return the GPU whose "
        "number is `local_rank`."
    )
    return Diagnosis("wrong-device", (0,), text, guide=GUIDE)


def on_gloo(backends: Sequence[str]) -> Diagnosis | None:
    """Judge the backend that was chosen by default; "" means that torch chooses nccl."""
    if not backends or backends[0] == "" or "nccl" in backends[0]:
        return None
    text = (
        f"On a machine with GPUs, setup_distributed uses {backends[0]} if `backend` is None. The "
        "tensors of the ranks are on GPUs, so use nccl."
    )
    return Diagnosis("wrong-device", (0,), text, guide=GUIDE)
