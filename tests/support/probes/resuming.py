"""Training runs that are interrupted and resumed from their file."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
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
from support.probes.training import Samples, rows_of

FILE = "progress.pt"
Data = Sequence[Samples]  # for training, and for validation


class Net(nn.Module):
    """Records its samples, changes a buffer, and raises Interruption at the sample `stop_at`."""

    center: Tensor

    def __init__(self, seed: int, stop_at: int | None = None) -> None:
        super().__init__()
        self.stop_at = stop_at
        seed_weights(seed)
        self.layer = nn.Linear(4, 3).double()
        self.register_buffer("center", torch.rand(4, dtype=torch.float64))
        self.weights: list[Tensor] = []  # before each step
        self.trained: list[float] = []  # the first number of each sample
        self.outputs: list[Tensor] = []  # only in training

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            if len(self.trained) == self.stop_at:
                raise Interruption
            self.trained += inputs[:, 0].tolist()
            self.weights.append(self.layer.weight.detach().clone())
            self.center *= 0.99  # like a running mean, but equal on every rank
            outputs: Tensor = self.layer(inputs)
            self.outputs += outputs.detach().clone()
            return outputs
        evaluated: Tensor = self.layer(inputs - self.center)
        return evaluated


class Interruption(Exception):  # noqa: N818 - it stands for an event, not for an error
    """The training was interrupted."""


def run_training(
    trainer: Any,
    info: Info,
    seed: int,
    data: Data,
    path: Path | str | None,
    *,
    epochs: int,
    batch_size: int = 1,
    stop_at: int | None = None,
) -> dict[str, Any]:
    """Call `train` with a new model; return a description, even if it is interrupted."""
    model, history = Net(seed, stop_at), None
    sets = [TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in data]
    options: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "lr": 0.1,
        "resume_from": path,
    }
    with printed(), optimizer_states() as states, contextlib.suppress(Interruption):
        history = trainer.train(info, model, *sets, **options)
    dist.barrier()  # rank 0 may still be writing
    numbers = {first: index for index, first in enumerate(data[0][0][:, 0].tolist())}
    trained = [numbers.get(first, -1) for first in model.trained]
    targets = torch.from_numpy(data[0][1])[trained]
    return {
        "params": {name: p.detach().clone() for name, p in model.named_parameters()},
        "center": model.center.clone(),
        "weights": torch.stack(model.weights) if model.weights else torch.zeros(0, 3, 4),
        "trained": trained,  # the samples, in order
        "states": states,
        "losses": [
            float(nn.functional.cross_entropy(output, target))
            for output, target in zip(model.outputs, targets, strict=True)
        ],
        "history": rows_of(history),
    }


def probe_interrupted(
    rank: int,
    world_size: int,
    trainer: Any,
    data: Data,
    stop_at: int,
    *,
    undisturbed: bool = True,
    resumed: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Train without interruption, with one, and resumed after it, each with a new model."""
    info = Info(rank, world_size)
    whole = run_training(trainer, info, 1, data, None, **options) if undisturbed else None
    first = run_training(trainer, info, 1, data, FILE, stop_at=stop_at, **options)
    content = Path(FILE).read_bytes() if Path(FILE).exists() else None
    again = resumed and content is not None
    second = run_training(trainer, info, 2, data, Path(FILE), **options) if again else None
    return {"whole": whole, "first": first, "second": second, "content": content}


def probe_resumed(
    rank: int, world_size: int, trainer: Any, data: Data, content: bytes, **options: Any
) -> dict[str, Any]:
    """Resume from a file of a training run with a different number of ranks."""
    part = Path(f"{rank}.part")
    part.write_bytes(content)
    part.replace(FILE)  # each rank writes the same content
    return run_training(trainer, Info(rank, world_size), 2, data, FILE, **options)


def probe_called_again(
    rank: int, world_size: int, trainer: Any, data: Data, calls: Sequence[int], batch_size: int
) -> list[dict[str, Any]]:
    """Train with these numbers of epochs in turn, each time with a new model and the same file."""
    info = Info(rank, world_size)
    return [
        run_training(trainer, info, n, data, FILE, epochs=epochs, batch_size=batch_size)
        for n, epochs in enumerate(calls)
    ]
