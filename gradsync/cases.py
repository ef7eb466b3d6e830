"""unittest classes whose tests run on N ranks, with the surface of torch's classes for tests.

A suite written for `MultiProcessTestCase`, `MultiProcContinuousTest` or `DTensorTestBase` changes
its base class. As there, `setUp` and `tearDown` run in the main process, and only the test method
runs on the ranks. Each test has new ranks.
"""

from __future__ import annotations

import functools
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gradsync.ranks import RankFailure, run_ranks

__all__ = ["RanksMixin", "RanksTestCase", "skip_if_lt_x_gpu", "with_comms"]


class RanksMixin:
    """Runs each test method of a `unittest.TestCase` on `world_size` ranks."""

    MAIN_PROCESS_RANK = -1
    world_size: int = 4  # a subclass may define properties instead
    process_group: bool = False  # start the default group, as MultiProcContinuousTest does
    timeout: float = 60.0  # seconds, of each test
    random_seed: int = (
        1234  # of every rank's random state: with torch's classes, too, they are equal
    )
    rank: int = MAIN_PROCESS_RANK
    file_name = ""  # of a new file, while a test runs: init_method=f"file://{self.file_name}"

    def __init__(self, methodName: str = "runTest") -> None:  # noqa: N803 - unittest's name
        super().__init__(methodName)  # type: ignore[call-arg] # of the TestCase beside it
        method = getattr(type(self), methodName, None)
        if method is not None and self.rank == self.MAIN_PROCESS_RANK:
            wrapped = functools.wraps(method)(functools.partial(self._run_on_ranks, methodName))
            setattr(self, methodName, wrapped)

    @property
    def device_type(self) -> str:
        return "cuda" if torch.cuda.device_count() >= self.world_size else "cpu"

    @property
    def device(self) -> torch.device:
        return torch.device(f"cuda:{self.rank}" if self.device_type == "cuda" else "cpu")

    @property
    def backend(self) -> str:
        return "nccl" if self.device_type == "cuda" else "gloo"

    @property
    def pg(self) -> dist.ProcessGroup | None:
        """The default process group."""
        return dist.group.WORLD

    def init_pg(self, eager_init: bool = False, backend: str | None = None) -> None:
        """Start the default process group."""
        if self.device_type == "cuda":
            torch.cuda.set_device(self.rank)
        dist.init_process_group(
            backend or self.backend,
            init_method=f"file://{self.file_name}",
            rank=self.rank,
            world_size=self.world_size,
            device_id=self.device if eager_init and self.device_type == "cuda" else None,
        )

    def destroy_pg(self) -> None:
        """End all process groups, when every rank has come here."""
        dist.barrier()
        dist.destroy_process_group()

    def build_device_mesh(self) -> DeviceMesh:
        return init_device_mesh(self.device_type, (self.world_size,))

    def _spawn_processes(self) -> None:
        """Do nothing: suites call this in `setUp`, but each test starts its own ranks."""

    _fork_processes = _spawn_processes

    def _run_on_ranks(self, name: str) -> None:
        __tracebackhide__ = True
        with tempfile.TemporaryDirectory() as folder:
            self.file_name = str(Path(folder) / "store")
            try:
                run_ranks(
                    run_test,
                    self.world_size,
                    process_group=self.process_group,
                    timeout=self.timeout,
                    case=type(self),
                    name=name,
                    file_name=self.file_name,
                )
            except RankFailure as failure:
                seen = failure.observation.failure
                if seen is not None and seen.exception == "SkipTest":
                    raise unittest.SkipTest(seen.detail or "") from None
                raise


class RanksTestCase(RanksMixin, unittest.TestCase):
    """A `TestCase` on ranks that also compares tensors, as torch's own does."""

    def assertEqual(self, first: Any, second: Any, msg: Any = None) -> None:  # noqa: N802
        if isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor):
            torch.testing.assert_close(first, second, msg=msg, equal_nan=True)
        else:
            super().assertEqual(first, second, msg)  # noqa: PT009


def run_test(rank: int, case: Callable[[str], Any], name: str, file_name: str) -> None:
    """Run one test method on a rank."""
    test = case(name)
    vars(test).pop(name, None)  # the method that would start ranks
    test.rank, test.file_name = rank, file_name
    torch.manual_seed(test.random_seed)
    getattr(test, name)()


def with_comms(test: Any = None, *, eager_init: bool = False, backend: str | None = None) -> Any:
    """Run a test method between `init_pg` and `destroy_pg`; use it with or without arguments."""
    if test is None:
        return functools.partial(with_comms, eager_init=eager_init, backend=backend)

    @functools.wraps(test)
    def run(self: RanksMixin, *args: Any, **kwargs: Any) -> None:
        self.init_pg(eager_init, backend)
        test(self, *args, **kwargs)
        self.destroy_pg()

    return run


def skip_if_lt_x_gpu(count: int, *, allow_cpu: bool = False) -> Callable[[Any], Any]:
    """Skip a test if there are fewer GPUs; with `allow_cpu`, also run it without any GPU."""
    found = torch.cuda.device_count()
    enough = found >= count or (allow_cpu and found == 0)
    return unittest.skipUnless(enough, f"Need at least {count} CUDA devices")
