"""OLMo-core's `run_distributed_test` on gradsync's ranks: `pytest -p port_olmo_core`."""

import os

import olmo_core.testing
from olmo_core.distributed.utils import init_distributed

from gradsync import run_ranks


def run_distributed_test(func, world_size=2, *, func_args=(), func_kwargs=None, **_):
    """Call `func` on each rank, with OLMo-core's environment."""
    run_ranks(_call, world_size, process_group=False, work=(func, func_args, func_kwargs or {}))


def _call(work):
    func, args, kwargs = work
    os.environ["NUM_NODES"] = "1"
    init_distributed("gloo")
    func(*args, **kwargs)


olmo_core.testing.run_distributed_test = run_distributed_test
