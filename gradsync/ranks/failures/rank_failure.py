"""The exception that a failed run raises."""

from __future__ import annotations

from gradsync.records import Failure, Observation


class RankError(Exception):
    """The exception that a rank raised, as text: nothing that a rank sends is unpickled."""

    def __init__(self, failure: Failure) -> None:
        where = f" at {failure.diagnosis.where}" if failure.diagnosis.where else ""
        head = f"rank {failure.diagnosis.ranks[0]} raised {failure.exception}{where}"
        lines = [f"{head}: {failure.detail}" if failure.detail else head]
        lines += [f"  {line}" for line in failure.traceback.splitlines()]
        super().__init__("\n".join(lines))


class RankWarning(UserWarning):
    """A run of ranks succeeded, but the outcome of one of its calls is uncertain or wrong."""


class RankFailure(Exception):  # noqa: N818 - a rank's failure, not an error of this package
    """A run of ranks failed; `observation` has everything that was observed."""

    def __init__(self, observation: Observation) -> None:
        super().__init__(observation)
        self.observation = observation
        failure = observation.failure
        if failure is not None and failure.exception and failure.diagnosis.ranks:
            self.__cause__ = RankError(failure)

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


RankWarning.__module__ = "gradsync"
RankFailure.__module__ = "gradsync"  # users import it from there; pytest's summary shows the name
