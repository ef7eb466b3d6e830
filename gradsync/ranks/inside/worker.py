"""Untrusted side: one rank: it reads its task, runs it, answers, and ends with `os._exit`."""

from __future__ import annotations

import faulthandler
import inspect
import os
import pickle
import random
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import current_process
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import torch

from gradsync.ranks.fast import dynamo
from gradsync.ranks.inside import cells, tools, watch
from gradsync.ranks.inside.answers import answer_of
from gradsync.ranks.inside.files import import_file, substitute
from gradsync.ranks.inside.rendezvous import make_mesh, start_group
from gradsync.ranks.inside.watch.disturbances import Disturbances
from gradsync.ranks.inside.watch.recorder import Recorder
from gradsync.ranks.inside.watch.threads import join_threads
from gradsync.ranks.protocol import pickles, wire
from gradsync.ranks.protocol.user_files import PACKAGE, PACKAGES

MAX_TMPDIR = 70  # characters; multiprocessing adds 32 for its socket names, and they are limited
STACK = 8 * 2**20  # bytes, the default of Linux
# The folder that gradsync was imported from. Unless it has installed packages, it is a copy of the
# course, and a submission must not import other files from it.
HOME = PACKAGE.parent
PARENT_SECONDS = 1.0  # between two checks that the parent is still alive


def start(channel: int, stacks: int) -> NoReturn:
    """Run a rank in a new process; it ends itself if its parent is killed."""
    threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    dynamo.defer()
    main(socket.socket(fileno=channel), socket.socket(fileno=stacks))


def main(
    channel: socket.socket,
    stacks: socket.socket,
    before_leaving: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Run the task received over `channel`, or the cells of a notebook, and end this process.

    The destructor of a gloo group sometimes hangs or aborts. So a rank never reaches the
    interpreter's shutdown: it exits as soon as its answer is sent.
    """
    setup = _receive(channel).header
    faulthandler.enable(stacks.fileno(), all_threads=False)
    faulthandler.register(signal.SIGUSR1, file=stacks.fileno(), all_threads=True)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    if "cells" in setup:
        _settle(setup)
        cells.serve(channel, setup)
    process = os.getpid()
    recorder = Recorder(channel, setup["rank"], setup["began"])
    head, pieces = answer_of(
        lambda: _run(channel, setup, recorder), setup["nonce"], tuple(setup["roots"])
    )
    if os.getpid() != process:  # a child that the function forked, and that returned
        os._exit(0)
    before_leaving()
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError, OSError):  # the function may have closed it
            stream.flush()
    recorder.send(head, *pieces)
    while channel.recv(1):  # a rank that leaves early breaks the connections of slower ones
        pass
    os._exit(0)


def _receive(channel: socket.socket) -> wire.Frame:
    frame = wire.receive(channel)
    if frame is None:  # the trusted side has ended
        os._exit(1)
    return frame


def _run(channel: socket.socket, setup: dict[str, Any], recorder: Recorder) -> Any:
    rank, world_size = setup["rank"], setup["world_size"]
    _settle(setup)
    if "nccl" in setup["backend"]:
        torch.cuda.set_device(rank)
    watching = watch.install()
    if setup["process_group"]:
        start_group(str(Path(setup["directory"]) / "store"), rank, world_size, setup["backend"])
    watching.begin(recorder, world_size, tuple(setup["roots"]))
    if setup["faults"] or setup["schedule"] is not None:
        recorder.disturbances = Disturbances(setup, watching.hold)
    task = _receive(channel)  # pickled while the ranks met
    recorder.send(wire.pack("ready"))
    recorder.await_go()
    pickles.SentModule.listed = not setup["roots"]
    function, inputs = pickle.loads(task.body)
    tools.show_comparisons()
    for name, path in setup["substitutes"].items():
        substitute(name, path)
    modules = {name: Path(path) for name, path in setup["modules"].items()}
    arguments = _arguments(function, rank, world_size, modules, inputs)
    if setup["mesh"] and "mesh" in _parameters(function):
        arguments["mesh"] = make_mesh(setup["backend"], setup["mesh"])
    save_coverage = tools.start_coverage()
    try:
        value = tools.call_with(setup.get("debugger"), rank, function, arguments)
        join_threads(recorder.join)
    finally:
        save_coverage()
    watching.handles.settle()
    if recorder.disturbances is not None and recorder.disturbances.pending:
        faults = ", ".join(sorted(recorder.disturbances.pending))
        raise RuntimeError(f"this rank never made the call of a planned fault: {faults}")
    return value


def _settle(setup: dict[str, Any]) -> None:
    """Set up this process as if the user had started it."""
    if setup["environ"] is not None:
        _be_in(setup["environ"])
    if setup["authkey"]:
        current_process().authkey = bytes.fromhex(setup["authkey"])
    os.environ.setdefault("HOME", setup["directory"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    if len(setup["directory"]) <= MAX_TMPDIR:
        # Files that a rank leaves there are removed with the run.
        os.environ["TMPDIR"] = setup["directory"]
        tempfile.tempdir = None
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core dumps
    _limit_stack()
    os.chdir(setup["cwd"])
    left_out = [*setup["path"], *([] if HOME.name in PACKAGES else [str(HOME)])]
    sys.path[:] = setup["path"] + [p for p in sys.path if p not in left_out]
    torch.set_num_threads(1)
    _reverse_sets(setup["rank"])
    # Generators of GPUs are seeded when one is first used.
    torch.default_generator.manual_seed(setup["seed"])
    random.seed(setup["seed"])
    np.random.seed(setup["seed"])


def _reverse_sets(rank: int) -> None:
    """Order sets of tensors by first use, and on odd ranks in reverse.

    Otherwise addresses decide the order. They differ between processes, but not between forked
    ranks, and two of them may share a place in a set by chance.
    """
    numbers: dict[int, int] = {}  # by address
    flip = -(rank % 2)  # all bits, on an odd rank

    def by_first_use(tensor: torch.Tensor) -> int:
        address = id(tensor)
        number = numbers.setdefault(address, len(numbers)) % 2**16
        # The lowest bits decide the order. The address makes hashes unique, since equal ones would
        # compare tensors, which raises; it is a multiple of 16.
        return (address << 12 | number) ^ flip

    torch.Tensor.__hash__ = by_first_use  # type: ignore[method-assign]


def _limit_stack() -> None:
    """Limit the stack: without a limit, a recursion in C takes all memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft == resource.RLIM_INFINITY or soft > STACK:
        resource.setrlimit(resource.RLIMIT_STACK, (STACK, hard))


def _be_in(environ: dict[str, str]) -> None:
    """Set these environment variables, and remove all others."""
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    for name, value in environ.items():
        if os.environ.get(name) != value:  # setting a variable allocates memory
            os.environ[name] = value


def _arguments(
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    modules: dict[str, Path],
    inputs: dict[str, Any],
) -> dict[str, Any]:
    """Fill the function's parameters by name; import a learner's file if one is needed."""
    wanted = _parameters(function)
    known: dict[str, Any] = {"rank": rank, "world_size": world_size}
    given = {name: value for name, value in known.items() if name in wanted}
    given |= {name: _load(path) for name, path in modules.items() if name in wanted}
    return given | inputs


def _parameters(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except ValueError:  # a builtin without a signature
        return set()


def _load(path: Path) -> ModuleType:
    """Import a file under its own name, with its folder on the path, as `python FILE` would."""
    sys.path[:0] = [str(path.parent), str(path.parent.parent)]
    return import_file(path.stem, path)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os.killpg(0, signal.SIGKILL)
