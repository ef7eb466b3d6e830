"""How `gradsync train` runs the trainers of this course, phase by phase."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from datetime import timedelta
from types import ModuleType

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradsync.data import InMemoryDigits, digits
from gradsync.launch.progress import Progress
from gradsync.launch.rank_errors import LaunchedWrongly
from gradsync.launch.settings import Settings
from gradsync.model import SmallCNN


def run(settings: Settings, trainer: ModuleType, progress: Progress) -> tuple[nn.Module, Tensor]:
    """Train the small CNN on this rank, continuing from the checkpoint if there is one.

    Returns:
        The trained model, and the test images (M, 1, 28, 28).
    """
    if settings.phase not in RECIPES:
        raise LaunchedWrongly(f"`gradsync train` can't run the trainers of {settings.phase}.")
    data = digits()
    torch.manual_seed(settings.seed)
    known = data.train.first(settings.samples)
    model = RECIPES[settings.phase](settings, trainer, progress, known, data.test)
    return model, data.test.images


def _phase1(
    settings: Settings,
    trainer: ModuleType,
    progress: Progress,
    known: InMemoryDigits,
    held_out: InMemoryDigits,
) -> nn.Module:
    """Train epoch by epoch: `train` of this phase can't continue from a checkpoint."""
    info = trainer.read_rank_info(os.environ)
    device = trainer.setup_distributed(info, timeout=timedelta(seconds=settings.timeout))
    model = SmallCNN().to(device)
    trainer.broadcast_model(model)
    loaders = importlib.import_module("template_data_loader")  # beside the trainer
    train_loader, val_loader = loaders.create_dataloaders(
        known,
        held_out,
        settings.batch_size,
        rank=info.rank,
        world_size=info.world_size,
        seed=settings.seed,
    )
    progress.started(f"{info.master_addr}:{info.master_port}", len(train_loader.sampler))
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr)
    first = 0
    if settings.checkpoint.is_file():
        first = trainer.load_checkpoint(settings.checkpoint, model, optimizer) + 1
    progress.continues(first)
    cross_entropy = nn.CrossEntropyLoss()
    for epoch in range(first, settings.epochs):
        train_loss = trainer.train_epoch(model, train_loader, cross_entropy, optimizer, epoch)
        val = trainer.evaluate(model, val_loader, cross_entropy)
        trainer.save_checkpoint(settings.checkpoint, model, optimizer, epoch)
        progress.ended_epoch(epoch, train_loss, **val)
    trainer.cleanup_distributed()
    return model


def _phase2(
    settings: Settings,
    trainer: ModuleType,
    progress: Progress,
    known: InMemoryDigits,
    held_out: InMemoryDigits,
) -> nn.Module:
    """Call `train` once: it prints, and it keeps its own checkpoint."""
    local_rank = int(os.environ["LOCAL_RANK"])
    device, backend = device_and_backend(local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(seconds=settings.timeout))
    master, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    rank, world_size = dist.get_rank(), dist.get_world_size()
    info = trainer.RankInfo(rank, world_size, local_rank, master, port)
    model = SmallCNN().to(device)
    sampler = trainer.ResumableDistributedSampler(known, world_size, rank)
    progress.started(f"{master}:{port}", len(sampler))
    progress.continues(0)
    if progress.is_rank_0 and settings.checkpoint.is_file():
        print(f"Continuing from {settings.checkpoint}", flush=True)
    history = trainer.train(
        info,
        model,
        known,
        held_out,
        epochs=settings.epochs,
        batch_size=settings.batch_size,
        lr=settings.lr,
        seed=settings.seed,
        resume_from=settings.checkpoint,
    )
    progress.ended(history)
    dist.destroy_process_group()
    return model


def device_and_backend(local_rank: int) -> tuple[torch.device, str]:
    """Return the device on which a rank of phase 2 trains, and its communication backends.

    On GPUs, nccl sends the gradients, and gloo sends all CPU tensors of a trainer.
    """
    if torch.cuda.device_count() and dist.is_nccl_available():
        return torch.device("cuda", local_rank), "cpu:gloo,cuda:nccl"
    return torch.device("cpu"), "gloo"


RECIPES: dict[str, Callable[..., nn.Module]] = {"phase1": _phase1, "phase2": _phase2}
