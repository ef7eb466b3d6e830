"""Prevent restarts of ranks that would fail in the same way at each attempt."""

from __future__ import annotations

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.launcher import api

from gradsync.launch.rank_errors import FAILS_AGAIN


class Agent(LocalElasticAgent):
    """torchrun's agent, except that it does not restart ranks which would fail again."""

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if any(failure.exitcode == FAILS_AGAIN for failure in result.failures.values()):
            self._remaining_restarts = 0
        return result


def choose_agent() -> None:
    """Make torch's launcher use this agent; the launcher has no argument for it."""
    api.LocalElasticAgent = Agent  # type: ignore[attr-defined]
