"""Checks of the environment variables that launchers set."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

from gradsync.finding import Finding, Subject
from gradsync.text import listed, verb

ANSWER_SECONDS = 1.5  # within which Slurm's controller must answer
SLOW = ("TORCH_DISTRIBUTED_DEBUG", "NCCL_DEBUG", "CUDA_LAUNCH_BLOCKING", "TORCH_CPP_LOG_LEVEL")
QUIET = ("", "0", "OFF", "WARN", "VERSION", "ERROR", "FATAL")
TORCHRUN = Subject(
    "torchrun", "each rank reads its number and the number of ranks from these variables"
)
SLURM = Subject("Slurm", "on a cluster, it starts one `gradsync train` on each node")
DEBUGGING = Subject("debugging", "torch's own log explains crashes, but it slows training")


def torchrun(environ: Mapping[str, str]) -> Finding:
    """Check that torchrun's variables are consistent, and not only partly set."""
    if problem := _half_a_set(environ, "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        return TORCHRUN.warning(
            f"{problem}; a script that is started without a launcher fails",
            "Start training with `gradsync train` or `torchrun`, which set all of them. Or unset "
            "the variables that were set by hand: unset RANK WORLD_SIZE LOCAL_RANK",
        )
    if "RANK" not in environ:
        return TORCHRUN.ok("no variables are set; the launcher sets all of them")
    return TORCHRUN.ok(f"RANK={environ['RANK']} WORLD_SIZE={environ['WORLD_SIZE']}")


def slurm(environ: Mapping[str, str]) -> Finding:
    """Check Slurm's variables, and whether its controller answers."""
    if problem := _half_a_set(environ, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"):
        remedy = "Start ranks with `srun`, in a job: sbatch cluster/test_distributed.sbatch"
        return SLURM.failed(problem, remedy)
    if "SLURM_JOB_ID" in environ:
        nodes = environ.get("SLURM_JOB_NODELIST", "nodes unknown")
        tasks = environ.get("SLURM_NTASKS", "?")
        unit = "task" if tasks == "1" else "tasks"
        return SLURM.ok(f"job {environ['SLURM_JOB_ID']} on {nodes}, {tasks} {unit}")
    if shutil.which("sinfo") is None:
        return SLURM.ok("not installed, and one machine does not need it")
    command = ["sinfo", "--noheader", "--format=%D %t"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=ANSWER_SECONDS
        )
        problem = "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
    except subprocess.TimeoutExpired:
        problem = f"no answer within {ANSWER_SECONDS:g} s"
    if problem:
        remedy = "If you train on more than this machine, ask the cluster's staff."
        return SLURM.warning(f"installed, but {problem}", remedy)
    states = listed(f"{count} {state}" for count, state in map(str.split, done.stdout.splitlines()))
    return SLURM.ok(f"nodes: {states}")


def debugging(environ: Mapping[str, str]) -> Finding:
    """Report variables that make torch log, which slows training."""
    if loud := [key for key in SLOW if environ.get(key, "") not in QUIET]:
        shown = listed(f"{key}={environ[key]}" for key in loud)
        return DEBUGGING.warning(
            f"{shown} {verb(loud, 'is', 'are')} set", f"Run: unset {' '.join(loud)}"
        )
    return DEBUGGING.ok(
        "off; after a crash, set TORCH_DISTRIBUTED_DEBUG=DETAIL and NCCL_DEBUG=INFO"
    )


def _half_a_set(environ: Mapping[str, str], rank: str, size: str, local: str) -> str:
    """Return the problem with a launcher's variables; "" if there is none."""
    names = [name for name in (rank, size) if name in environ]
    if len(names) == 1:
        missing = size if names == [rank] else rank
        return f"{names[0]} is set, but {missing} is not"
    for key in (rank, size, local):
        if key in environ and not environ[key].isdecimal():
            return f"{key}={environ[key]} is not a number"
    if names and int(environ[rank]) >= int(environ[size]):
        return f"{rank}={environ[rank]} is not less than {size}={environ[size]}"
    return ""
