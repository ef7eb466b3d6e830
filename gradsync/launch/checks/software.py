"""Checks of torch and torchvision, GPUs, gloo, and the data."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from gradsync.finding import Finding, Subject
from gradsync.mnist import check_data
from gradsync.text import counted, listed

REQUIRED = re.compile(r"^torch\s*\(?==\s*([\d.]+)")
NVIDIA = Path("/proc/driver/nvidia/version")
MEET_SECONDS = 2.0
STEPS = 5
FAIR_SHARE = 0.2  # of a step's time; with more communication, a larger batch is recommended
TORCH = Subject("torch", "torchvision works only with the version of torch that it was built for")
GPUS = Subject("GPUs", "nccl on GPUs is much faster than gloo, and needs a GPU for each rank")
GLOO = Subject("gloo", "ranks on CPUs exchange gradients through it")
OVERHEAD = Subject("overhead", "if averaging takes longer than computing, more ranks are slower")


def torch_and_torchvision() -> Finding:
    """Check that torchvision was built for the installed version of torch."""
    try:
        torch, vision = version("torch"), version("torchvision")
        matches = map(REQUIRED.match, requires("torchvision") or [])
        needs = [match[1] for match in matches if match is not None]
    except PackageNotFoundError as missing:
        remedy = "Run `pip install 'gradsync[course]'`."
        return TORCH.failed(f"{missing.name} is not installed", remedy)
    found = f"torch {torch}, torchvision {vision}"
    base, _, build = torch.partition("+")
    if needs and needs[0] != base:
        remedy = f"Install versions that match: pip install torch=={needs[0]} torchvision=={vision}"
        return TORCH.failed(f"{found}, which needs torch {needs[0]}", remedy)
    other = vision.partition("+")[2]
    if build != other:
        found += f": builds {build or 'PyPI'} and {other or 'PyPI'} differ"
        remedy = (
            "gradsync uses only torchvision's data sets, which work. If other code fails, install "
            "both from one index."
        )
        return TORCH.warning(found, remedy)
    return TORCH.ok(found)


def gpus(ranks: int) -> Finding:
    """Check that each rank gets its own GPU, which nccl requires."""
    import torch
    import torch.distributed as dist

    count = torch.cuda.device_count()
    if not count:
        if NVIDIA.exists():
            hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
            reason = f"CUDA_VISIBLE_DEVICES={hidden}" if hidden is not None else "a CPU build"
            remedy = "Unset CUDA_VISIBLE_DEVICES, or install a build of torch with CUDA."
            return GPUS.warning(f"torch finds no GPU ({reason})", remedy)
        return GPUS.ok("none, so gloo on the CPU is used")
    found = f"{counted(count, 'GPU')} for {counted(ranks, 'rank')}"
    if not dist.is_nccl_available():
        remedy = "Install a build of torch with nccl."
        return GPUS.failed(f"{found}, but no nccl", remedy)
    if ranks > count:
        return GPUS.failed(found, f"Use --nproc {count}.")
    return GPUS.ok(f"{found}, with nccl")


def gloo(environ: Mapping[str, str]) -> Finding:
    """Check an all-reduce over gloo between two ranks, which are threads of this process."""
    chosen = environ.get("GLOO_SOCKET_IFNAME")
    try:
        seconds = _all_reduce(elements=1)
    except RuntimeError as problem:
        found = str(problem).splitlines()[0].rpartition("] ")[2]
        remedy = f"Unset GLOO_SOCKET_IFNAME={chosen}." if chosen else "Read `interface` above."
        return GLOO.failed(f"two ranks can't connect: {found}", remedy)
    return GLOO.ok(f"two ranks connect; a small all-reduce takes {_ms(seconds)}")


def communication(batch_size: int) -> Finding:
    """Compare the time to compute a step with the time to average its gradients."""
    import torch
    import torch.nn.functional as F

    from gradsync.model import SmallCNN

    model, images = SmallCNN(), torch.zeros(batch_size, 1, 28, 28)
    targets = torch.zeros(batch_size, dtype=torch.int64)
    torch.set_num_threads(1)  # as on a machine with as many ranks as cores
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        torch.autograd.backward(F.cross_entropy(model(images), targets))
        times.append(time.perf_counter() - began)
    computing = min(times)
    try:
        averaging = _all_reduce(sum(p.numel() for p in model.parameters()))
    except RuntimeError:
        return OVERHEAD.failed("not measured: gloo fails", "Read `gloo` above.")
    share = averaging / (averaging + computing)
    found = (
        f"computing a batch of {batch_size} takes {_ms(computing)}, and an all-reduce of its "
        f"gradients takes {_ms(averaging)}, which is {share:.0%} of the step on this machine"
    )
    if share <= FAIR_SHARE:
        return OVERHEAD.ok(found)
    enough = averaging * (1 - FAIR_SHARE) / FAIR_SHARE * batch_size / computing
    larger = max(batch_size + 1, round(enough))
    remedy = (
        f"Use a larger --batch-size (with about {larger}, the all-reduce is {FAIR_SHARE:.0%} of "
        "the step), GPUs with nccl, or fewer ranks."
    )
    return OVERHEAD.warning(found, remedy)


def data() -> Finding:
    """Check that MNIST is present and complete, or can be downloaded."""
    return replace(check_data(), why="without MNIST, scikit-learn's 1,797 smaller digits are used")


def _all_reduce(elements: int) -> float:
    """Run several all-reduces between two threads, and return the seconds of the fastest.

    Raises:
        RuntimeError: the threads can't connect.
    """
    import torch
    from torch._C._distributed_c10d import HashStore, ProcessGroupGloo

    store, times, problems = HashStore(), list[float](), list[Exception]()

    def rank(number: int) -> None:
        try:
            group = ProcessGroupGloo(store, number, 2, timedelta(seconds=MEET_SECONDS))
            values = torch.ones(elements)
            for _ in range(STEPS):
                began = time.perf_counter()
                group.allreduce([values]).wait()  # type: ignore[attr-defined]
                times.append(time.perf_counter() - began)
        except RuntimeError as problem:
            problems.append(problem)

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise RuntimeError(listed(dict.fromkeys(map(str, problems))))
    return min(times)


def _ms(seconds: float) -> str:
    milliseconds = 1000 * seconds
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"
