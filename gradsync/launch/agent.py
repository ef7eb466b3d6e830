"""Start the ranks of this node with torchrun's elastic agent, and explain how they ended."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
from contextlib import suppress
from tempfile import TemporaryDirectory

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)
from torch.distributed.launcher import api

from gradsync.launch import network
from gradsync.launch.master_watch import watch_master
from gradsync.launch.placement import Master
from gradsync.launch.rank_errors import FAILS_AGAIN, IS_WRONG
from gradsync.launch.settings import Settings
from gradsync.text import counted

WORKER = ("-m", "gradsync.launch.worker")
WATCH_MARGIN = 5  # seconds after the time limit of the ranks
SHUTDOWN_SECONDS = 5  # from SIGTERM to SIGKILL of a rank
FAILED_RANK = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")


class TrainingError(Exception):
    """The ranks started but did not finish; the text names the failed rank and what to do."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status  # of the command


class Agent(LocalElasticAgent):
    """torchrun's agent, except that it does not restart ranks which would fail again."""

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if any(f.exitcode in (FAILS_AGAIN, IS_WRONG) for f in result.failures.values()):
            self._remaining_restarts = 0
        return result


def launch(settings: Settings, master: Master | None, nodes: int, nproc: int, wait: float) -> None:
    """Run the ranks of this node until all ranks of the job have ended.

    Args:
        settings: the settings of the training run.
        master: the node that all nodes connect to; None if there is only this node.
        nodes: the number of nodes.
        nproc: the number of ranks on this node.
        wait: the number of seconds to wait for the other nodes.

    Raises:
        TrainingError: a rank failed and can't be restarted again, or a node is missing.
    """
    _report_failed_ranks(each=nodes > 1 or settings.max_restarts > 0)
    _choose_interface(master)
    api.LocalElasticAgent = Agent  # type: ignore[attr-defined]  # there is no argument for it
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SHUTDOWN_SECONDS))
    # If the ranks shared the agents' store, a restarted rank could read the address of a rank of
    # the previous attempt (pytorch issue 135712): "connectFullMesh failed ... Connection refused".
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    try:
        with TemporaryDirectory(prefix="gradsync-launch-") as logs:
            if master is not None and not master.is_here:
                # With this margin, the ranks fail first, and report where they waited.
                seconds = settings.timeout + WATCH_MARGIN
                watch_master(master, seconds, lambda: _lost(master, settings), logs)
            config = _config(settings, master, nodes, nproc, wait, logs)
            api.elastic_launch(config, sys.executable)(*WORKER, settings.to_json())
    except ChildFailedError as failed:
        raise TrainingError(_why(failed.failures, settings)) from None
    except SignalException as stopped:
        name = signal.Signals(stopped.sigval).name
        text = f"Stopped by {name}. {_continued_by_slurm(settings) or how_to_continue(settings)}"
        raise TrainingError(text, 128 + stopped.sigval) from None
    except RendezvousTimeoutError:
        raise TrainingError(
            f"Not all {counted(nodes, 'node')} connected to {_endpoint(master)} within {wait:g} s. "
            "Start the same command on every node, with the same --nodes and --master. "
            "`gradsync doctor --launch` checks whether a node can reach the master."
        ) from None
    except (RendezvousConnectionError, RendezvousClosedError):
        raise TrainingError(_lost(master, settings)) from None


def _lost(master: Master | None, settings: Settings) -> str:
    return (
        f"The connection from {socket.gethostname()} to the master at {_endpoint(master)} is lost: "
        f"the master ended, or the network is interrupted. {how_to_continue(settings)}"
    )


def _config(
    settings: Settings, master: Master | None, nodes: int, nproc: int, wait: float, logs: str
) -> api.LaunchConfig:
    return api.LaunchConfig(
        min_nodes=nodes,
        max_nodes=nodes,
        nproc_per_node=nproc,
        run_id=os.environ.get("SLURM_JOB_ID", "gradsync"),
        rdzv_backend="c10d",
        rdzv_endpoint=_endpoint(master),
        rdzv_configs={
            "join_timeout": max(1, int(wait)),
            "close_timeout": SHUTDOWN_SECONDS,
            "read_timeout": settings.timeout,
            "is_host": master is None or master.is_here,
        },
        max_restarts=settings.max_restarts,
        local_addr=None if master is None else network.route_to(master.address),
        logs_specs=DefaultLogsSpecs(log_dir=logs),
    )


def _endpoint(master: Master | None) -> str:
    return "localhost:0" if master is None else f"{master.address}:{master.port}"


def _choose_interface(master: Master | None) -> None:
    """Make gloo and nccl use the interface that leads to the master.

    By default gloo uses the address of the host's name. On many machines this is 127.0.1.1. Other
    nodes can't connect to it, and then all ranks wait until their time limit.
    """
    address = "127.0.0.1" if master is None else network.route_to(master.address)
    name = network.interface_with(address)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        if master is not None:
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def how_to_continue(settings: Settings) -> str:
    """Return how to continue from the checkpoint, if there is one."""
    if settings.test_links:
        return "Run `gradsync doctor --launch` on each node."
    if not settings.checkpoint.exists():
        return "There is no checkpoint, so the same command starts from the beginning."
    again = "command again without --fresh" if settings.fresh else "same command again"
    return f"Run the {again} to continue from {settings.checkpoint}."


def _continued_by_slurm(settings: Settings) -> str:
    """Describe what Slurm does after it has stopped a job; return "" outside of a job."""
    if "SLURM_JOB_ID" not in os.environ or not settings.checkpoint.exists():
        return ""
    return (
        f"After a preemption, Slurm starts this job again, from {settings.checkpoint}. After "
        "scancel, submit it again to continue from there."
    )


def _why(failures: dict[int, ProcessFailure], settings: Settings) -> str:
    """Return a message that names the rank that failed first, and the next step."""
    # The agent stops the other ranks with SIGTERM, so these are named last. A rank that was killed
    # by another signal is named first, because the others fail when their connection to it closes.
    rank, first = min(
        failures.items(),
        key=lambda item: (
            item[1].exitcode == -signal.SIGTERM,
            item[1].exitcode > 0,
            item[1].timestamp,
        ),
    )
    if first.exitcode == IS_WRONG:
        return "The ranks did not train like one process: see the closing check of rank 0."
    text = f"Rank {rank} {_ending(first.exitcode)}"
    if not settings.max_restarts:
        return f"{text}. {how_to_continue(settings)}"
    if first.exitcode == FAILS_AGAIN:
        return f"{text}. It was not restarted, because it would fail in the same way again."
    after = counted(settings.max_restarts, "restart")
    return f"{text}, after {after}. {how_to_continue(settings)}"


def _ending(exitcode: int) -> str:
    if exitcode == IS_WRONG:
        return "ended because of the closing check"
    if exitcode >= 0:
        return f"failed (its message is above; exit status {exitcode})"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"was killed by signal {-exitcode}"


def _report_failed_ranks(*, each: bool) -> None:
    """Replace the agent's own log by one line for each rank that fails.

    Without `each`, nothing is printed here: with one node and no restarts, the final message
    already names the rank.

    If the environment variable LOGLEVEL is set (LOGLEVEL=INFO), torchrun's own log is shown.
    """
    if "LOGLEVEL" in os.environ:
        return
    for name in [*logging.root.manager.loggerDict]:
        if name.startswith("torch.distributed.elastic"):
            logger = logging.getLogger(name)
            handler = _FailedRanks() if each else logging.NullHandler()
            logger.handlers, logger.propagate = [handler], False


class _FailedRanks(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        found = FAILED_RANK.search(record.getMessage())
        if found is not None:
            ending = _ending(int(found[1]))
            text = f"The process with local rank {found[2]} on {socket.gethostname()} {ending}."
            print(f"gradsync: {text}", file=sys.stderr, flush=True)
