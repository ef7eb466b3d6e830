"""Checks of the environment variables that launchers set."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

from gradsync.finding import Finding
from gradsync.text import listed, verb

ANSWER_SECONDS = 1.5  # within which Slurm's controller must answer
SLOW = ("TORCH_DISTRIBUTED_DEBUG", "NCCL_DEBUG", "CUDA_LAUNCH_BLOCKING", "TORCH_CPP_LOG_LEVEL")
QUIET = ("", "0", "OFF", "WARN", "VERSION", "ERROR", "FATAL")


def torchrun(environ: Mapping[str, str]) -> Finding:
    """Check that torchrun's variables are consistent, and not only partly set."""
    name = "torchrun"
    why = "each rank reads its number and the number of ranks from these variables"
    remedy = (
        "Start training with `gradsync train` or `torchrun`, which set all of them. Or unset the "
        "variables that were set by hand: unset RANK WORLD_SIZE LOCAL_RANK"
    )
    problem = _half_a_set(environ, "RANK", "WORLD_SIZE", "LOCAL_RANK")
    if problem:
        found = f"{problem}; a script that is started without a launcher fails"
        return Finding(name, "warning", found, why, remedy)
    if "RANK" not in environ:
        return Finding(name, "ok", "no variables are set; the launcher sets all of them", why)
    found = f"RANK={environ['RANK']} WORLD_SIZE={environ['WORLD_SIZE']}"
    return Finding(name, "ok", found, why)


def slurm(environ: Mapping[str, str]) -> Finding:
    """Check Slurm's variables, and whether its controller answers."""
    name, why = "Slurm", "on a cluster, it starts one `gradsync train` on each node"
    problem = _half_a_set(environ, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    if problem:
        remedy = "Start ranks with `srun`, in a job: sbatch cluster/test_distributed.sbatch"
        return Finding(name, "failed", problem, why, remedy)
    if "SLURM_JOB_ID" in environ:
        nodes = environ.get("SLURM_JOB_NODELIST", "nodes unknown")
        tasks = environ.get("SLURM_NTASKS", "?")
        unit = "task" if tasks == "1" else "tasks"
        found = f"job {environ['SLURM_JOB_ID']} on {nodes}, {tasks} {unit}"
        return Finding(name, "ok", found, why)
    if shutil.which("sinfo") is None:
        return Finding(name, "ok", "not installed, and one machine does not need it", why)
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
        return Finding(name, "warning", f"installed, but {problem}", why, remedy)
    states = listed(f"{count} {state}" for count, state in map(str.split, done.stdout.splitlines()))
    return Finding(name, "ok", f"nodes: {states}", why)


def debugging(environ: Mapping[str, str]) -> Finding:
    """Report variables that make torch log, which slows training."""
    name = "debugging"
    why = "torch's own log explains crashes, but it slows training"
    loud = [f"{key}={environ[key]}" for key in SLOW if environ.get(key, "") not in QUIET]
    if loud:
        names = " ".join(word.partition("=")[0] for word in loud)
        return Finding(
            name,
            "warning",
            f"{listed(loud)} {verb(loud, 'is', 'are')} set",
            why,
            f"Run: unset {names}",
        )
    hint = "off; after a crash, set TORCH_DISTRIBUTED_DEBUG=DETAIL and NCCL_DEBUG=INFO"
    return Finding(name, "ok", hint, why)


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
