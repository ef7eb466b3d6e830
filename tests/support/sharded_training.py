"""How `gradsync train` runs the trainer of phase 3, a transformer, and checks the result."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradsync.launch.progress import Progress
from gradsync.launch.rank_errors import CheckFailed
from gradsync.launch.settings import Settings
from gradsync.records import Diagnosis
from gradsync.text import counted
from support.probes.language_models import draw_sequences, run_training
from support.rules.sharded_training import (
    GUIDE,
    batches_mistake,
    history_mistake,
    losses_mistake,
    together,
)

LENGTH = 128  # tokens in a row
PROMPT, SAMPLE = "def ", 300  # bytes of the sample
SEQUENCES, BATCH, STEPS = 30, 2, 6  # of the closing check


def run(
    settings: Settings, trainer: ModuleType, progress: Progress, info: Any, device: torch.device
) -> tuple[nn.Module, Tensor]:
    """Train the given transformer on Python's own modules; check it, and print a sample.

    Returns:
        The trained model on the CPU, and rows of tokens (M, 128).

    Raises:
        CheckFailed: the ranks did not train like one process; raised on every rank.
    """
    sys.path.append(str(settings.course / settings.phase))  # model.py, if it is not beside it
    given = importlib.import_module("model")
    loaders = importlib.import_module("template_data_loader")
    rows = loaders.pack_documents(given.standard_library(), LENGTH, given.EOS)[: settings.samples]
    steps = len(rows) // (settings.batch_size * info.world_size)  # of an epoch
    progress.started(f"{info.master_addr}:{info.master_port}", steps * settings.batch_size)
    progress.continues(resumes=True)
    torch.manual_seed(settings.seed + info.rank)  # other weights on each rank
    with _recorded(trainer) as made:
        history = trainer.train(
            info,
            given.Transformer().to(device),
            rows,
            steps=settings.epochs * steps,
            batch_size=settings.batch_size,
            lr=settings.lr,
            seed=settings.seed,
            resume_from=settings.checkpoint,
        )
        state = made[-1].full_state_dict() if made else {}
    _check(trainer, info, state)
    first = settings.epochs * steps - len(history)  # whether the trainer counts from 0 or 1
    numbered = enumerate(history, first)
    progress.ended([{**entry, "epoch": number // steps} for number, entry in numbered])
    model = given.Transformer()
    model.load_state_dict({name: value.cpu() for name, value in state.items()})
    if info.rank == 0:
        print(f"Sample:\n{given.sample(model, PROMPT, SAMPLE)}", flush=True)
    dist.destroy_process_group()
    return model, rows[:, :-1]


@contextmanager
def _recorded(trainer: ModuleType) -> Iterator[list[Any]]:
    """Record the sharded modules that `train` creates: it returns none."""
    plain, made = trainer.FullyShardedModule, []

    class Recorded(plain):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    trainer.FullyShardedModule = Recorded  # type: ignore[attr-defined]
    try:
        yield made
    finally:
        trainer.FullyShardedModule = plain  # type: ignore[attr-defined]


def _check(trainer: ModuleType, info: Any, state: dict[str, Tensor]) -> None:
    """Check on all ranks that they have one model, and that their steps equal one process's.

    Raises:
        CheckFailed: they do not.
    """
    sequences = draw_sequences(np.random.default_rng(0), SEQUENCES)
    own = run_training(
        trainer, info.rank, info.world_size, 1, sequences, steps=STEPS, batch_size=BATCH, lr=0.05
    )
    sums = {name: value.double().sum().item() for name, value in state.items()}
    of_ranks: list[Any] = [None] * info.world_size
    dist.all_gather_object(of_ranks, (own, sums))
    seen, models = zip(*of_ranks, strict=True)
    mistake = (
        _different_models(models)
        or history_mistake(seen, 0, STEPS)
        or batches_mistake(together(seen), SEQUENCES, info.world_size, BATCH)
        or losses_mistake(seen, 1, sequences)
    )
    if mistake is not None:
        raise CheckFailed(mistake)
    if info.rank == 0:
        print(
            f"Closing check: {counted(info.world_size, 'rank')} ended with the same weights, and "
            f"{STEPS} steps of a small model equal those of one process",
            flush=True,
        )


def _different_models(models: tuple[dict[str, float], ...]) -> Diagnosis | None:
    if not models[0]:
        text = "train does not shard the model: it creates no FullyShardedModule."
        return Diagnosis("parameters-not-sharded", tuple(range(len(models))), text, guide=GUIDE)
    if all(model == models[0] for model in models):
        return None
    text = "full_state_dict has different values on the ranks after training."
    return Diagnosis("models-differ", tuple(range(len(models))), text, guide=GUIDE)
