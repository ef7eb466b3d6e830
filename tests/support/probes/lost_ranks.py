"""Training in which a rank is killed, or is later than any timeout."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from support.probes import Info
from support.probes.optimizers import optimizer_states
from support.probes.printing import printed
from support.probes.seeding import seed_weights
from support.probes.training import Samples

FILE = "progress.pt"
EPOCHS, STEPS = 2, 5  # steps per epoch, in batches of one sample per rank
GROUP_LIMIT = 4.0  # seconds that ranks wait for a late rank, at least in sends and receives
LATE_LIMIT = 0.2  # the same after all ranks have reached the step in which one is late
Data = Sequence[Samples]  # for training, and for validation


class Net(nn.Module):
    """A model that records its weights and samples at each step, and calls `fault` before one."""

    def __init__(self, seed: int, at: int | None, fault: Callable[[], None] | None) -> None:
        super().__init__()
        seed_weights(seed)
        self.layer = nn.Linear(4, 3).double()
        self.weights: list[Tensor] = []
        self.trained: list[float] = []
        self.at, self.fault = at, fault

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            if len(self.trained) == self.at and self.fault is not None:
                self.fault()
            self.trained += inputs[:, 0].tolist()
            self.weights.append(self.layer.weight.detach().clone())
        outputs: Tensor = self.layer(inputs)
        return outputs


def _run_training(
    train: Callable[..., Any],
    info: Info,
    data: Data,
    path: str | None,
    *,
    seed: int = 1,
    at: int | None = None,
    fault: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Call `train` with a new model; return a description of the training."""
    model = Net(seed, at, fault)
    sets = [TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in data]
    options: dict[str, Any] = {"epochs": EPOCHS, "batch_size": 1, "resume_from": path}
    with printed(), optimizer_states() as states:
        train(info, model, *sets, lr=0.1, **options)
    numbers = {first: index for index, first in enumerate(data[0][0][:, 0].tolist())}
    return {
        "params": {name: p.detach().clone() for name, p in model.named_parameters()},
        "weights": torch.stack(model.weights) if model.weights else torch.zeros(0, 3, 4),
        "trained": [numbers.get(first, -1) for first in model.trained],  # the samples, in order
        "states": states,
    }


def probe_fault(
    rank: int, world_size: int, trainer: Any, data: Data, at: int, lost: int, *, late: bool
) -> dict[str, Any]:
    """Train with a file until a rank is lost; return how it ended, and the file's content."""
    limit = timedelta(seconds=GROUP_LIMIT)  # a limit set later is used for collectives only
    place: dict[str, Any] = {"rank": rank, "world_size": world_size}
    place["store"] = dist.FileStore("store", world_size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", timeout=limit, **place)

    def be_late() -> None:
        for group in list(dist.distributed_c10d._world.pg_map):  # also groups that train created
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=LATE_LIMIT), group)
        while rank == lost and len(list(Path().glob("ended-*"))) < world_size - 1:
            time.sleep(0.01)  # longer than any timeout of the other ranks

    def be_killed() -> None:
        if rank == lost:
            until = time.monotonic() + GROUP_LIMIT
            while time.monotonic() < until and len(list(Path().glob("reached-*"))) < world_size:
                time.sleep(0.01)  # until no other rank is in the previous step
            os.kill(process, signal.SIGKILL)

    def fault() -> None:
        reached.append(at)
        Path(f"reached-{rank}").touch()
        (be_late if late else be_killed)()

    process, train = os.getpid(), trainer.train
    messages: list[str] | None = None
    reached: list[int] = []
    try:
        _run_training(train, Info(rank, world_size), data, FILE, at=at, fault=fault)
    except NotImplementedError:
        raise
    except BaseException as error:  # noqa: BLE001 - also SystemExit
        messages = _messages_of(error)
    Path(f"ended-{rank}").touch()
    content = Path(FILE).read_bytes() if Path(FILE).exists() else None
    return {"messages": messages, "content": content, "reached": bool(reached)}


def _messages_of(error: BaseException | None) -> list[str] | None:
    """Return the messages of an error and its causes; None for an exit that means success."""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return None
    messages: list[str] = []
    while error is not None:
        messages += [str(error), *getattr(error, "__notes__", [])]
        error = error.__cause__ or error.__context__
    return messages


def probe_again(
    rank: int, world_size: int, trainer: Any, data: Data, content: bytes, pause: float
) -> dict[str, Any]:
    """Train without a fault, except for a pause of one rank, and then resume from a file."""
    info, train = Info(rank, world_size), trainer.train

    def fault() -> None:
        time.sleep(pause * (rank == 1))

    whole = _run_training(train, info, data, None, at=STEPS, fault=fault)
    part = Path(f"{rank}.part")
    part.write_bytes(content)
    part.replace(FILE)  # each rank writes the same content
    return {"whole": whole, "second": _run_training(train, info, data, FILE, seed=2)}
