"""Untrusted side: one rank. Reads its task, runs it, answers, and leaves with `os._exit`."""

from __future__ import annotations

import faulthandler
import importlib.util
import inspect
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from gradsync.ranks import frames, values, watch, wire


def main(channel: socket.socket, stacks: socket.socket) -> None:
    """Run the one task that comes over `channel` and end this process.

    A gloo group's destructor can hang or abort, now and then, so no rank ever returns into the
    interpreter's own shutdown: it leaves at once when its answer is on its way.
    """
    task = wire.receive(channel)
    if task is None:
        os._exit(1)
    faulthandler.register(signal.SIGUSR1, file=stacks.fileno(), all_threads=True)
    roots = tuple(task.header["roots"])
    try:
        tree, body = values.encode(_run(channel, task, roots))
        answer = wire.pack("answer", {"value": tree}, body)
    except BaseException as error:  # noqa: BLE001 - whatever a rank raises is reported as itself
        answer = wire.pack("raised", frames.describe_exception(error, roots))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    channel.sendall(answer)
    while channel.recv(1):  # a rank that leaves early breaks the connections of slower ones
        pass
    os._exit(0)


def _run(channel: socket.socket, task: wire.Frame, roots: tuple[str, ...]) -> Any:
    header = task.header
    rank, world_size = header["rank"], header["world_size"]
    os.chdir(header["cwd"])
    sys.path[:] = header["path"] + [p for p in sys.path if p not in header["path"]]
    torch.set_num_threads(1)
    if header["process_group"]:
        start_group(header["store"], rank, world_size)
    watch.install(watch.Recorder(channel, header["began"], roots))
    function, inputs = pickle.loads(task.body)
    modules = {name: Path(path) for name, path in header["modules"].items()}
    return function(**_arguments(function, rank, world_size, modules, inputs))


def start_group(path: str, rank: int, world_size: int) -> None:
    """Meet the other ranks over a file: no port that two runs side by side could both want."""
    store = dist.FileStore(path, world_size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)


def _arguments(
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    modules: dict[str, Path],
    inputs: dict[str, Any],
) -> dict[str, Any]:
    """Fill the function's parameters by name; a learner's file is imported when it is asked for."""
    wanted = inspect.signature(function).parameters
    known: dict[str, Any] = {"rank": rank, "world_size": world_size}
    given = {name: value for name, value in known.items() if name in wanted}
    given |= {name: _load(path) for name, path in modules.items() if name in wanted}
    return given | inputs


def _load(path: Path) -> ModuleType:
    """Import a file under its own name, with its folder on the path, as `python FILE` would."""
    sys.path[:0] = [str(path.parent), str(path.parent.parent)]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))
