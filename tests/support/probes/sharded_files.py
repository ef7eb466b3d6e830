"""Checkpoints in shards: what is on disk at any moment of a save, and damaged files."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from support.probes.late_rank import let_rest
from support.probes.sharded import Biased, full_state, seeded, wrapped

# Calls of Python that change what is on disk; a snapshot is taken before each.
CHANGES = (
    "open",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.truncate",
    "os.symlink",
    "os.link",
)
MOST = 24  # snapshots of a save on a rank
HIDDEN, OUTPUTS = 7, 5  # of the model: 35 elements, which 2, 3 and 4 do not divide


def made(trainer: Any, seed: int, hidden: int = HIDDEN) -> tuple[Any, torch.optim.Optimizer]:
    """Return a sharded model in evaluation mode, and its optimizer."""
    make = partial(Biased, hidden=hidden, outputs=OUTPUTS)
    model = wrapped(trainer, seeded(make, seed, torch.float32).eval())
    groups = [
        {"params": [p for p in model.parameters() if p.dim() != 0], "lr": 0.01},
        {"params": [p for p in model.parameters() if p.dim() == 0], "lr": 0.02},
    ]
    return model, torch.optim.AdamW(groups)


def step(model: Any, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> None:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    model.finish()
    optimizer.step()


def batch_of(rank: int, world_size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return this rank's part of a batch that is the same for 1, 2, 3 and 4 ranks together."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(12, 6, generator=draw)
    targets = torch.randn(12, OUTPUTS, generator=draw)
    mine = slice(rank * 12 // world_size, (rank + 1) * 12 // world_size)
    return inputs[mine], targets[mine]


def content_of(folder: Path) -> dict[str, bytes | str]:
    """Return every file in a folder, by its path there: its content, or where a link points."""
    return {
        path.relative_to(folder).as_posix(): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def restore(folder: Path, content: Mapping[str, bytes | str]) -> None:
    """Write files and links into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(data, str):
            path.symlink_to(data)
        else:
            path.write_bytes(data)


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def snapshots(folder: Path, into: Path, rank: int) -> Iterator[None]:
    """Copy a folder before each change that this rank's Python code makes to files.

    Each copy has the folder under its own name, because files in it may contain their paths. While
    a rank copies, the other ranks make no such change, so each copy is what a crash of all ranks at
    that moment would leave. A file that is opened to be overwritten is empty at first.
    """
    lock = (into / "lock").open("a")
    state = {"taken": 0, "busy": False, "on": True}

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if (
            not state["on"]
            or state["busy"]
            or event not in CHANGES
            or not _writes(event, arguments)
        ):
            return
        state["busy"] = True
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            emptied = _emptied(event, arguments, folder)
            for name in (None, emptied) if emptied else (None,):
                if state["taken"] < MOST:
                    place = into / f"{rank}-{state['taken']}" / folder.name
                    _copy(folder, place)
                    if name is not None and (place / name).exists():
                        (place / name).write_bytes(b"")
                    state["taken"] += 1
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)
            state["busy"] = False

    sys.addaudithook(look)
    try:
        yield
    finally:
        state["on"] = False
        lock.close()


@contextmanager
def late_writes(process: int | None) -> Iterator[None]:
    """Before this rank opens or renames a file, wait until another process has nothing to do."""
    waits = [process] if process is not None else []

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if waits and event in ("open", "os.rename") and _writes(event, arguments):
            let_rest([*waits])

    sys.addaudithook(look)
    try:
        yield
    finally:
        waits.clear()


def _writes(event: str, arguments: tuple[Any, ...]) -> bool:
    if event != "open":
        return True
    _, mode, flags = arguments
    return bool(isinstance(mode, str) and set(mode) & set("wax+")) or bool(
        isinstance(flags, int) and flags & 0o103
    )


def _emptied(event: str, arguments: tuple[Any, ...], folder: Path) -> Path | None:
    """Return the file in the folder that opening it empties: a crash may come before the write."""
    if event != "open" or not isinstance(arguments[0], (str, os.PathLike)):
        return None
    path = Path(arguments[0]).absolute()
    truncates = "w" in str(arguments[1]) or (
        isinstance(arguments[2], int) and arguments[2] & os.O_TRUNC
    )
    inside = truncates and path.is_file() and path.is_relative_to(folder.absolute())
    return path.relative_to(folder.absolute()) if inside else None


def _copy(folder: Path, into: Path) -> None:
    """Copy a folder; once more if a file disappears meanwhile."""
    for _ in range(20):
        shutil.rmtree(into, ignore_errors=True)
        try:
            if folder.is_dir():
                shutil.copytree(folder, into, symlinks=True)
            else:
                into.mkdir(parents=True)
        except (shutil.Error, OSError):
            continue
        return


def outcome(load: Callable[[], Any], model: Any = None) -> dict[str, Any]:
    """Return what loading a checkpoint does: the step, and the model's state, or the error.

    Without a model there is no state: all ranks must read it together, but one alone may fail.
    """
    try:
        saved = load()
    except NotImplementedError:
        raise
    except Exception as error:  # noqa: BLE001 - its type is the answer
        kind = next(
            (k.__name__ for k in (ValueError, FileNotFoundError) if isinstance(error, k)), ""
        )
        return {"error": type(error).__name__, "kind": kind, "text": str(error)}
    return {"step": int(saved), "state": None if model is None else full_state(model)}
