"""torchmetrics' pool of two processes as gradsync's ranks: `pytest -p port_torchmetrics`."""

import torch.multiprocessing

from gradsync import run_ranks


class Pool:
    """A pool in which each call of `map` has new ranks."""

    def __init__(self, processes):
        self.processes = processes

    def map(self, function, ranks):  # noqa: ARG002 - all of them, from 0
        return list(run_ranks(_call, self.processes, work=function))

    def starmap(self, function, arguments):
        """Do nothing: this starts the ranks' process group, which has already started."""

    close = join = lambda _: None


def _call(rank, work):
    work(rank)


torch.multiprocessing.Pool = Pool
