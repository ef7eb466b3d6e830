"""The exception that a failed run raises."""

from __future__ import annotations

from gradsync.records import Observation


class RankFailure(Exception):  # noqa: N818 - it is about a rank's failure, not an error of ours
    """A run of ranks failed; `observation` has all that was observed."""

    def __init__(self, observation: Observation) -> None:
        super().__init__(observation)
        self.observation = observation

    def __str__(self) -> str:
        failure = self.observation.failure
        graph = failure.graph if failure else ()
        return "\n".join([self.summary(), *([""] if graph else []), *(f"  {row}" for row in graph)])

    def summary(self) -> str:
        """Return what happened and at which lines, without the graph of a deadlock."""
        failure = self.observation.failure
        if failure is None:
            return "no failure"
        lines = [failure.diagnosis.explanation]
        if failure.traceback:
            lines += ["", *("  " + line for line in failure.traceback.splitlines())]
        return "\n".join(lines)
