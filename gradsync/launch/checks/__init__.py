"""Checks of the requirements for training on several ranks and nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gradsync.finding import Finding
from gradsync.launch.checks import addresses, environment, machine, software

__all__ = ["Finding", "examine"]


def examine(environ: Mapping[str, str], ranks: int, batch_size: int) -> Iterator[Finding]:
    """Yield the result of each check; all checks take a few seconds in total.

    Args:
        environ: the environment in which training is to start.
        ranks: the number of ranks on this machine.
        batch_size: the number of samples of one rank in a batch.
    """
    checks: list[Callable[[], Finding]] = [
        machine.python,
        software.torch_and_torchvision,
        lambda: software.gpus(ranks),
        lambda: environment.torchrun(environ),
        lambda: environment.slurm(environ),
        lambda: environment.debugging(environ),
        lambda: machine.cores(environ, ranks),
        lambda: machine.load(ranks),
        machine.shared_memory,
        lambda: addresses.interface(environ),
        lambda: addresses.master(environ),
        lambda: addresses.port(environ),
        lambda: software.gloo(environ),
        lambda: software.communication(batch_size),
        software.data,
    ]
    for check in checks:
        yield check()
