"""accelerate's `debug_launcher` on gradsync's ranks: `pytest -p port_accelerate`."""

import os

import accelerate

from gradsync import run_ranks


def debug_launcher(function, args=(), num_processes=2):
    """Call `function(*args)` on each rank, on a CPU."""
    run_ranks(_call, num_processes, work=(function, args))


def _call(work):
    function, args = work
    os.environ.update(ACCELERATE_USE_CPU="yes", ACCELERATE_MIXED_PRECISION="no", FORK_LAUNCHED="1")
    os.environ.pop("LOCAL_RANK")  # with it, accelerate takes even one process for several
    function(*args)


accelerate.debug_launcher = debug_launcher
