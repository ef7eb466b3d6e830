"""Fixtures and hooks that the conftest.py of each folder of tests imports."""

from __future__ import annotations

import inspect
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from sandboxed import needs_sandbox

from gradsync.ranks import RankFailure, get_launcher, run_ranks
from gradsync.records import Failure

__all__ = [
    "afresh",
    "failure_of",
    "folder",
    "here",
    "needs_sandbox",
    "pytest_xdist_make_scheduler",
]

LONGEST = 240.0  # seconds until a run is stopped that should end earlier; the machine may be busy

# The same examples in every run, without a time limit, because the machine may be busy.
hypothesis.settings.register_profile("gradsync", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("gradsync")

# A shell starts programs in the background with Ctrl-C ignored, and so are their child processes.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute tests to processes, if the option `-n` is given."""
    from scheduling import Scheduling

    return Scheduling(config, log)


@pytest.fixture
def failure_of() -> Callable[..., Failure]:
    """Run a function that must fail on its ranks, before its time limit; return the failure."""

    def run(function: Callable[..., Any], world_size: int = 2, **options: Any) -> Failure:
        with pytest.raises(RankFailure) as caught:
            run_ranks(function, world_size, **{"timeout": LONGEST, **options})
        observation = caught.value.observation
        assert observation.seconds < LONGEST, "only a time limit stopped the run"
        assert observation.failure is not None
        return observation.failure

    return run


@pytest.fixture
def afresh() -> Iterator[None]:
    """Start a new warm process, without the modules that ranks of earlier tests imported."""
    get_launcher("fork").close()
    yield
    get_launcher("fork").close()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Create a folder for temporary files of this test only, with a path of the usual length."""
    monkeypatch.chdir(tmp_path)
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


@pytest.fixture
def here() -> Callable[[Callable[..., Any]], str]:
    """Return the place of a function's line with `# here`: "test_run.py:12"."""

    def find(function: Callable[..., Any]) -> str:
        lines, first = inspect.getsourcelines(function)
        [offset] = [i for i, line in enumerate(lines) if "# here" in line]
        return f"{Path(inspect.getfile(function)).name}:{first + offset}"

    return find
