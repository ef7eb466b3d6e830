"""The engine's pytest plugin: the `ranks` fixture, and the mark `@pytest.mark.ranks`."""

from __future__ import annotations

import ast
import functools
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from gradsync.text import counted

if TYPE_CHECKING:
    from gradsync.ranks import RankFailure
    from gradsync.records import Observation

OPTIONS = {  # of run_ranks
    *("timeout", "process_group", "backend", "launcher", "nodes", "mesh", "random_seed", "strict"),
    *("may_fail", "faults", "schedules", "schedule", "debug"),
}
FILLED_IN = ("rank", "world_size")  # by the ranks
MARKERS = (
    "ranks(*world_sizes, **options): run the test on so many ranks (see run_ranks)",
    # Of a course's suites; here, because a suite may import `gradsync.testing` without a course.
    "exercise(id, points): the exercise of a test, and its weight among all tests",
    "early: run first, to import modules while the ranks' process is still starting",
)
INNER = "GRADSYNC_PYTEST_RANK"  # set in each pytest of `--on-ranks`
USES_RANKS = re.compile(rb"\bgradsync\b|\bmark\.ranks\b|\bdef test\w*\([^)]*\branks\b")
HAS_OWN_RANKS = pytest.StashKey[bool]()  # whether another plugin replaces the fixture `ranks`


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gradsync", "functions on N ranks")
    group.addoption(
        "--ranks-launcher",
        choices=("fork", "hashes", "spawn", "sandbox"),
        help="how ranks are started",
    )
    group.addoption(
        "--ranks-pdb", type=int, metavar="RANK", help="debug this rank of each run in this terminal"
    )
    group.addoption(
        "--on-ranks",
        type=int,
        metavar="N",
        help="run this whole session on N ranks at a time, for suites written for a launcher",
    )
    group.addoption(
        "--ranks-seed", default="0", help="seed of the ranks' random states, with the test's name"
    )
    parser.addini("ranks_timeout", "time limit of a run of ranks, in seconds", default="60")


def own_devices(devices: str, worker: str, workers: str) -> str:
    """Return the GPUs of one worker of pytest-xdist, so that workers do not share them.

    Args:
        devices: all GPUs, as in CUDA_VISIBLE_DEVICES: "0,1,2,3".
        worker: the name of the worker: "gw1".
        workers: the number of workers.

    Returns:
        an equal share of them, or all if there are too few.
    """
    names, index, count = devices.split(","), int(worker.removeprefix("gw")), int(workers)
    share = len(names) // count
    return ",".join(names[index * share : (index + 1) * share]) or devices


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run the whole session on each of N ranks, as `torchrun -m pytest` does."""
    world_size: int | None = config.getoption("--on-ranks")
    if world_size is None or INNER in os.environ:
        return None
    from gradsync.ranks import RankFailure, run_ranks

    try:
        run_ranks(
            run_session,
            world_size,
            process_group=False,
            timeout=math.inf,
            launcher=config.getoption("--ranks-launcher"),
            arguments=list(config.invocation_params.args),
        )
    except RankFailure as failure:
        print(failure)
        return int(pytest.ExitCode.TESTS_FAILED)
    return int(pytest.ExitCode.OK)


def run_session(rank: int, arguments: list[str]) -> None:
    """Run pytest on a rank; only rank 0 reports tests that passed.

    Raises:
        SystemExit: tests failed.
    """
    os.environ[INNER] = str(rank)
    quiet = ["-qq", "--no-header", "-p", "no:cacheprovider"] if rank else []
    if status := pytest.main([*arguments, *quiet]):
        raise SystemExit(int(status))


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--ranks-pdb") is not None and (
        config.getoption("numprocesses", None) or config.getoption("--ranks-launcher") == "sandbox"
    ):
        raise pytest.UsageError("--ranks-pdb needs the terminal: leave out -n and the sandbox.")
    devices, worker = (os.environ.get(n) for n in ("CUDA_VISIBLE_DEVICES", "PYTEST_XDIST_WORKER"))
    if devices and worker:
        count = os.environ["PYTEST_XDIST_WORKER_COUNT"]
        os.environ["CUDA_VISIBLE_DEVICES"] = own_devices(devices, worker, count)
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> None:
    """Start the ranks' warm process before a module that uses it is imported, with its torch."""
    config = parent.config
    if config.stash.get(HAS_OWN_RANKS, default=INNER in os.environ):
        return
    if USES_RANKS.search(module_path.read_bytes()):
        from gradsync.ranks import get_launcher

        with suppress(ValueError, OSError):  # the first run reports it
            get_launcher(config.getoption("--ranks-launcher")).warm_up()


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Callable[..., Observation]:
    """Run a function on N ranks: call the fixture as you would call `gradsync.run_ranks`.

    The options of the command line and the configuration apply to each run.
    """
    # Imported here because few of the tests that load this plugin need it.
    from gradsync.ranks import RankFailure, lacking, run_ranks

    config = request.config
    options = {"launcher": config.getoption("--ranks-launcher")}
    limit = float(config.getini("ranks_timeout"))
    seed = f"{config.getoption('--ranks-seed')} {request.node.nodeid}"

    def run(
        function: Callable[..., Any] | None = None, world_size: int = 0, **inputs: Any
    ) -> Observation:
        __tracebackhide__ = True
        if (lack := lacking(inputs.get("backend", "gloo"), world_size)) is not None:
            _skip(lack)
        debug = _debugged(config, world_size)
        given = {"timeout": limit, "debug": debug, "random_seed": seed, **options, **inputs}
        try:
            with _terminal_of(config) if debug is not None else nullcontext():
                return run_ranks(function, world_size, **given)
        except RankFailure as failure:
            _end_test(failure)
            raise

    return run


def _debugged(config: pytest.Config, world_size: int) -> int | None:
    """Return the rank to debug in a run, or None; warn if the run has no such rank."""
    rank: int | None = config.getoption("--ranks-pdb")
    if rank is None or rank in range(world_size):
        return rank
    text = f"--ranks-pdb {rank}: this run has {counted(world_size, 'rank')}, numbered from 0"
    warnings.warn(pytest.PytestWarning(text), stacklevel=3)
    return None


def _end_test(failure: RankFailure) -> None:
    """Skip the test if a rank called `pytest.skip`; the same for `pytest.xfail`."""
    __tracebackhide__ = True
    seen = failure.observation.failure
    if seen is None or seen.exception not in ("Skipped", "XFailed"):
        return
    reason = f"{seen.detail} (rank {seen.diagnosis.ranks[0]})"
    if seen.exception == "XFailed":
        pytest.xfail(reason)
    _skip(reason)


def _skip(reason: str) -> NoReturn:
    """Skip the test; pytest's summary names the line of the test, not a line of this file."""
    __tracebackhide__ = True
    raise pytest.skip.Exception(reason, _use_item_location=True)


@contextmanager
def _terminal_of(config: pytest.Config) -> Iterator[None]:
    """Suspend pytest's capturing of output while the block runs: a debugger needs the terminal."""
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.suspend(in_=True)
    try:
        yield
    finally:
        capture.resume()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Turn a test with `@pytest.mark.ranks(2, 4)` into one test for each world size."""
    mark = metafunc.definition.get_closest_marker("ranks")
    if mark is None:
        return
    sizes = mark.args
    if not sizes or not all(type(size) is int for size in sizes):
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid}: name one or more world sizes, as in "
            f"@pytest.mark.ranks(4), not {sizes!r}"
        )
    if unknown := sorted(mark.kwargs.keys() - OPTIONS):
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid}: @pytest.mark.ranks has no option {unknown[0]!r}; "
            f"it has {', '.join(sorted(OPTIONS))}"
        )
    if "ranks" in metafunc.definition._fixtureinfo.argnames:
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid}: a test with @pytest.mark.ranks already runs "
            "on the ranks; leave out the fixture 'ranks', or the mark"
        )
    for name in _filled_in(mark):
        if name not in metafunc.fixturenames:
            metafunc.fixturenames.append(name)
    hidden = [pytest.HIDDEN_PARAM]
    metafunc.parametrize("rank", [None], ids=hidden)
    if "mesh" in mark.kwargs:
        metafunc.parametrize("mesh", [None], ids=hidden)
    ids = hidden if len(sizes) == 1 else [f"{size}-ranks" for size in sizes]
    metafunc.parametrize("world_size", sizes, ids=ids)


def _filled_in(mark: pytest.Mark) -> tuple[str, ...]:
    """Return the arguments of a marked test that the ranks fill in."""
    return (*FILLED_IN, "mesh") if "mesh" in mark.kwargs else FILLED_IN


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the body of a marked test on the ranks; its other fixtures' values are sent to them."""
    __tracebackhide__ = True
    mark = pyfuncitem.get_closest_marker("ranks")
    if mark is None:
        return None
    names = [n for n in pyfuncitem._fixtureinfo.argnames if n not in _filled_in(mark)]
    values = {name: pyfuncitem.funcargs[name] for name in names}
    world_size = pyfuncitem.callspec.params["world_size"]
    run = pyfuncitem._request.getfixturevalue("ranks")
    from gradsync.ranks import RankFailure

    try:
        run(functools.partial(pyfuncitem.obj, **values), world_size, **mark.kwargs)
    except TypeError:
        _refuse_unpicklable(values)
        raise
    except RankFailure as failure:
        _raise_in_test(failure, pyfuncitem)
    return True


def _raise_in_test(failure: RankFailure, test: pytest.Function) -> NoReturn:
    """Raise a failure at the line where the rank left the test, so that pytest shows this line."""
    __tracebackhide__ = True
    seen = failure.observation.failure
    first = test.function.__code__.co_firstlineno
    places = ""
    if seen is not None:
        places = f"{seen.diagnosis.where}\n{seen.traceback}\n{seen.diagnosis.explanation}"
    lines = [int(n) for n in re.findall(rf"\b{re.escape(test.path.name)}:(\d+)", places)]
    line = next((number for number in lines if number > first), first)
    source = ast.parse("\n" * (line - first) + "raise failure")
    for node in ast.walk(source):  # no column is known, so pytest must not mark any
        if isinstance(node, ast.Raise | ast.Name):
            node.end_col_offset = node.col_offset = 0
    code = compile(source, test.path, "exec")
    exec(code.replace(co_name=test.name, co_firstlineno=first), {"failure": failure})
    raise AssertionError  # not reached


def _refuse_unpicklable(values: dict[str, Any]) -> None:
    """Raise an error that names the fixture whose value can't be sent to the ranks, if any."""
    import cloudpickle

    for name, value in values.items():
        try:
            cloudpickle.dumps(value)
        except Exception as problem:  # noqa: BLE001 - a value's own code may raise anything
            text = f"the value of the fixture {name!r} can't be sent to the ranks: {problem}"
            raise TypeError(text) from None
