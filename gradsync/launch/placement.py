"""The nodes of a job: their number, their master, and the connection to it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from gradsync.errors import UnusableInput
from gradsync.launch import network

DEFAULT_PORT = 29500
CONNECT_SECONDS = 3.0  # for one attempt
SILENT_SECONDS = 5.0  # before a message reports that this node is waiting
PAUSE_SECONDS = 0.3  # between two attempts
IMPORT_SECONDS = 5.0  # for torch, on a busy machine


class LaunchError(UnusableInput):
    """The ranks can't be started here; the text explains why, and what to do."""


@dataclass(frozen=True, slots=True)
class Master:
    """The node and the port that all nodes connect to."""

    host: str
    port: int
    address: str  # IPv4
    is_here: bool  # this process is the one that listens on the port


def nodes_of_step(environ: Mapping[str, str]) -> int:
    """Return the number of nodes if `srun` started one process on each, or else 1."""
    nodes = environ.get("SLURM_STEP_NUM_NODES", "1")
    return int(nodes) if nodes == environ.get("SLURM_STEP_NUM_TASKS") else 1


def find_master(environ: Mapping[str, str], given: str | None) -> Master:
    """Return the master: `given` as HOST or HOST:PORT, or else the master in the environment.

    Raises:
        LaunchError: no master is named, its name can't be resolved, or its port is not valid.
    """
    host, _, port = (given or "").partition(":")
    host = host or environ.get("MASTER_ADDR", "")
    named = bool(host)
    if not host and (nodes := environ.get("SLURM_JOB_NODELIST")):
        host = _scontrol("show", "hostnames", nodes).partition("\n")[0]  # the job's first node
    if not host:
        raise LaunchError(
            "The nodes need a master to connect to. Add --master HOST (the same on every node), "
            "or set MASTER_ADDR."
        )
    text = port or environ.get("MASTER_PORT") or str(DEFAULT_PORT)
    if not (text.isdecimal() and 0 < int(text) < 2**16):
        where = "--master" if port else "MASTER_PORT"
        raise LaunchError(f"{where} has the port {text!r}. Use a number from 1 to 65535.")
    address = _resolved(host)
    is_here = network.is_this_machine(address)
    if not named:  # in a simulated cluster, several nodes may be on one machine
        is_here = environ.get("SLURM_NODEID", "0") == "0"
    return Master(host, int(text), address, is_here)


def _resolved(host: str) -> str:
    """Return a host's IPv4 address; if the name can't be resolved, ask Slurm for the address."""
    try:
        return network.address_of(host)
    except OSError as problem:
        known = re.search(r"NodeAddr=(\S+)", _scontrol("--oneliner", "show", "node", host))
        if known is not None and known[1] != host:
            return _resolved(known[1])
        raise LaunchError(
            f"The master's name {host!r} can't be resolved on {socket.gethostname()}: "
            f"{problem.strerror}. Use its IP address, which `hostname -I` shows on that machine."
        ) from None


def _scontrol(*arguments: str) -> str:
    if "SLURM_JOB_ID" not in os.environ:
        return ""
    command = ["scontrol", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def check_port(master: Master) -> Master:
    """Check that the port is free on the master, or used by another node of the same job.

    Returns:
        The master; `is_here` is False if another `gradsync train` on this machine listens there.

    Raises:
        LaunchError: another program uses the port; the message names it.
    """
    if not network.is_taken(master.port):
        return master
    holder = network.holder_of(master.port)
    if holder is not None and _is_of_this_job(holder):
        return replace(master, is_here=False)
    raise LaunchError(
        f"Port {master.port} is in use on this machine, by {holder_text(holder)}. All nodes must "
        "be able to connect to the master at this port. Choose another port on every node, such "
        f"as MASTER_PORT={master.port + 1}, or stop that process."
    )


def holder_text(holder: network.Holder | None) -> str:
    """Describe the process that listens on a port."""
    if holder is None:
        return "a process of another user"
    return f"process {holder.pid} ({holder.command[:80]})"


def _is_of_this_job(holder: network.Holder) -> bool:
    """Return whether a process is the agent of another node of this job on the same machine."""
    words = holder.command.split()
    return any("gradsync" in word for word in words) and "train" in words


def wait_for_master(master: Master, seconds: float) -> None:
    """Wait until the master answers.

    Raises:
        LaunchError: it did not answer within `seconds`.
    """
    began, announced = time.monotonic(), False
    while True:
        try:
            socket.create_connection((master.address, master.port), CONNECT_SECONDS).close()
        except OSError as problem:
            waited = time.monotonic() - began
            if waited > seconds:
                raise LaunchError(unreachable(master, problem, seconds)) from None
            if waited > SILENT_SECONDS and not announced:
                announced = True
                print(f"gradsync: Waiting for {master.host}:{master.port} ...", file=sys.stderr)
            time.sleep(PAUSE_SECONDS)
        else:
            if _is_store(master, seconds - (time.monotonic() - began)):
                return
            raise LaunchError(
                f"A program at {master.host}:{master.port} accepts connections, but within "
                f"{seconds:g} s it did not answer as the master of a training run. Another program "
                "or a proxy may use this port. Use another MASTER_PORT on every node, or the "
                "master's IP address in --master."
            )


def _is_store(master: Master, seconds: float) -> bool:
    """Return whether torch's store answers at the master's port within `seconds`.

    torch waits without a time limit and can't be interrupted, so it connects in a thread.
    """
    answered = threading.Event()
    limit, patience = timedelta(seconds=max(seconds, 1)), max(seconds, IMPORT_SECONDS)
    until = time.monotonic() + patience

    def ask() -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        while not answered.is_set() and time.monotonic() < until:
            with suppress(RuntimeError):  # such as DistNetworkError, if the master has ended
                TCPStore(master.address, master.port, None, False, limit, wait_for_workers=False)
                answered.set()
            time.sleep(PAUSE_SECONDS)

    threading.Thread(target=ask, daemon=True).start()
    return answered.wait(patience)


def unreachable(master: Master, problem: OSError, seconds: float) -> str:
    """Describe why the master does not answer, and what to do."""
    where = f"{master.host}:{master.port}"
    if isinstance(problem, ConnectionRefusedError):
        return (
            f"The master {where} can be reached, but for {seconds:g} s nothing listened on its "
            "port. Start the same command on the master, and use the same port on every node."
        )
    reason = problem.strerror or "no answer"
    return (
        f"The master {where} could not be reached from {socket.gethostname()} within "
        f"{seconds:g} s: {reason}. A firewall or a wrong address may be the cause. Run "
        "`gradsync doctor --launch` on both machines."
    )
