"""How `gradsync train` runs the trainers of this course, phase by phase, and checks the result."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradsync.data import digits
from gradsync.launch.progress import Progress
from gradsync.launch.rank_errors import CheckFailed, LaunchedWrongly
from gradsync.launch.settings import Settings
from gradsync.model import SmallCNN
from gradsync.records import Diagnosis
from gradsync.text import counted, full_stop
from support import sharded_training
from support.probes.closing import BATCH_SIZE, EPOCHS, SHARE, observed
from support.probes.ready_made import ForbiddenShortcut
from support.probes.returned import WrongReturn
from support.probes.training import weights_of
from support.rules.closing import closing_mistake, different_weights
from support.rules.one_process import PHASE1, PHASE2, Headings

# Each rank draws other weights, so that a model that is not broadcast can't look right.
OTHER_WEIGHTS = 1_000_003  # times the rank, added to the seed


@dataclass(frozen=True)
class Recipe:
    """How the trainers of a phase are run."""

    start: Callable[[Settings, ModuleType], tuple[Any, torch.device]]  # the group: (info, device)
    end: Callable[[ModuleType], None]
    sampler: str  # the class in `template_data_loader`
    headings: Headings
    resumes: bool  # `train` has a parameter `resume_from`


def run(settings: Settings, trainer: ModuleType, progress: Progress) -> tuple[nn.Module, Tensor]:
    """Call the trainer's `train` on this rank, and check that the ranks trained like one process.

    Returns:
        The trained model, and inputs for it, such as the test images (M, 1, 28, 28).

    Raises:
        CheckFailed: the ranks did not train like one process; raised on every rank.
    """
    if settings.phase in RECIPES:
        return _run_digits(RECIPES[settings.phase], settings, trainer, progress)
    if settings.phase == "phase3":
        return sharded_training.run(settings, trainer, progress, *_start_phase2(settings, trainer))
    raise LaunchedWrongly(f"`gradsync train` can't run the trainers of {settings.phase}.")


def _run_digits(
    recipe: Recipe, settings: Settings, trainer: ModuleType, progress: Progress
) -> tuple[nn.Module, Tensor]:
    """Train the small CNN on MNIST."""
    data = digits()
    known = data.train.first(settings.samples)
    info, device = recipe.start(settings, trainer)
    loaders = importlib.import_module("template_data_loader")  # beside the trainer
    sampler = getattr(loaders, recipe.sampler)(known, info.world_size, info.rank)
    progress.started(f"{info.master_addr}:{info.master_port}", len(sampler))
    progress.continues(resumes=recipe.resumes)
    torch.manual_seed(settings.seed + OTHER_WEIGHTS * info.rank)
    model = SmallCNN().to(device)
    history = trainer.train(
        info,
        model,
        known,
        data.test,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        lr=settings.lr,
        seed=settings.seed,
        **({"resume_from": settings.checkpoint} if recipe.resumes else {}),
    )
    with _folder_for_check(settings):
        _check(recipe, trainer, info, device, model)
    progress.ended(history)
    recipe.end(trainer)
    return model, data.test.images


@contextmanager
def _folder_for_check(settings: Settings) -> Iterator[None]:
    """Run the block in a folder of its own, so that files that `train` writes are not replaced."""
    before = Path.cwd()
    folder = (settings.out / "check").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)  # another rank may have done it already


def _check(
    recipe: Recipe, trainer: ModuleType, info: Any, device: torch.device, model: nn.Module
) -> None:
    """Check on all ranks that they have one model, and that their steps equal one process's.

    Raises:
        CheckFailed: they do not.
    """
    seen: dict[str, Any] = {}
    mistake: Diagnosis | None = None
    try:
        seen = observed(trainer.train, info, device, recipe.sampler)
    except (WrongReturn, ForbiddenShortcut) as error:
        shortcut = isinstance(error, ForbiddenShortcut)
        code = "forbidden-shortcut" if shortcut else "wrong-signature"
        mistake = Diagnosis(code, (), full_stop(str(error)), guide=recipe.headings.training)
    of_ranks: list[Any] = [None] * info.world_size
    dist.all_gather_object(of_ranks, (seen, weights_of(model), mistake))
    everything, models, mistakes = zip(*of_ranks, strict=True)
    mistake = next(filter(None, mistakes), None) or closing_mistake(everything, recipe.headings)
    mistake = mistake or different_weights(models, recipe.headings.training)
    if mistake is not None:
        raise CheckFailed(mistake)
    if info.rank == 0:
        ranks, steps = counted(info.world_size, "rank"), EPOCHS * -(-SHARE // BATCH_SIZE)
        print(
            f"Closing check: {ranks} ended with the same weights, and {steps} steps of a small "
            "model equal those of one process",
            flush=True,
        )


def _start_phase1(settings: Settings, trainer: ModuleType) -> tuple[Any, torch.device]:
    info = trainer.read_rank_info(os.environ)
    return info, trainer.setup_distributed(info, timeout=timedelta(seconds=settings.timeout))


def _start_phase2(settings: Settings, trainer: ModuleType) -> tuple[Any, torch.device]:
    local_rank = int(os.environ["LOCAL_RANK"])
    device, backend = device_and_backend(local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(seconds=settings.timeout))
    master, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    info = trainer.RankInfo(dist.get_rank(), dist.get_world_size(), local_rank, master, port)
    return info, device


def device_and_backend(local_rank: int) -> tuple[torch.device, str]:
    """Return the device on which a rank of phase 2 trains, and its communication backends.

    On GPUs, nccl sends the gradients, and gloo sends all CPU tensors of a trainer.
    """
    if torch.cuda.device_count() and dist.is_nccl_available():
        return torch.device("cuda", local_rank), "cpu:gloo,cuda:nccl"
    return torch.device("cpu"), "gloo"


RECIPES = {
    "phase1": Recipe(
        start=_start_phase1,
        end=lambda trainer: trainer.cleanup_distributed(),
        sampler="PaddedDistributedSampler",
        headings=PHASE1,
        resumes=False,
    ),
    "phase2": Recipe(
        start=_start_phase2,
        end=lambda _trainer: dist.destroy_process_group(),
        sampler="ResumableDistributedSampler",
        headings=PHASE2,
        resumes=True,
    ),
}
