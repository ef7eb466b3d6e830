"""Which failed ranks are not restarted: those that would fail again at each attempt."""

from __future__ import annotations

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.launcher import api

from gradsync.launch.rank_errors import FAILS_AGAIN


class Agent(LocalElasticAgent):
    """torchrun's agent, which otherwise restarts all ranks after any failure."""

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if any(failure.exitcode == FAILS_AGAIN for failure in result.failures.values()):
            self._remaining_restarts = 0
        return result


def choose_agent() -> None:
    """Let torch's launcher use this agent, which no argument of it can name."""
    api.LocalElasticAgent = Agent  # type: ignore[attr-defined]
