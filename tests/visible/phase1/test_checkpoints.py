"""The visible tests of checkpoints, for `gradsync check`."""

from numbers import Integral

import torch
from torch import nn

from gradsync.testing import check, exercise
from gradsync.text import FORGOTTEN
from support.probes.returned import WrongReturn, described
from support.promises import checkpoints

GUIDE = "Checkpoints"


@exercise("phase1/save_checkpoint", points=1)
def test_only_rank_0_writes(ranks):
    """Rank 1 writes nothing to the disk, not even beside the checkpoint."""
    checkpoints.only_rank_0_writes(ranks, world_size=2)


@exercise("phase1/save_checkpoint", points=1)
def test_the_other_rank_waits_for_the_file(ranks):
    """Rank 0 is late, in a first save and in a second: rank 1 waits until the new file is there."""
    checkpoints.file_there_on_every_rank(ranks, world_size=2)


@exercise("phase1/save_checkpoint", points=1)
def test_the_former_checkpoint_survives_a_failed_save(ranks):
    """If the disk is full halfway through a save, the file of the save before is still complete.

    Then no rank returns as if the new file existed.
    """
    checkpoints.former_file_survives_crash(ranks)
    checkpoints.failed_save_reported(ranks)


@exercise("phase1/save_checkpoint", points=1)
def test_the_optimizer_is_in_the_file(ranks):
    """With a momentum of 100 x 100 numbers, the file is larger than without momentum."""
    checkpoints.optimizer_in_file(ranks)


def make(weight, lr):
    """Return the model `output = weight * input`, and its optimizer."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, weight)
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def lost_text(loaded, saved):
    """Return the advice for the first value that differs from the saved one."""
    advice = {
        "weight": "The weight is the model's: save and load the state of the model.",
        "lr": "`lr` is the optimizer's learning rate: save and load the state of the optimizer.",
        "epoch": "`epoch` is what save_checkpoint is called with and load_checkpoint returns: both "
        "must leave it as it is.",
    }
    name = next((name for name in advice if loaded[name] != saved[name]), "epoch")
    forgotten = f" {FORGOTTEN}" if loaded[name] is None else ""
    return advice[name] + forgotten


@exercise("phase1/load_checkpoint", points=1)
def test_loading_restores_what_was_saved(ranks):
    """Weight 7, learning rate 0.5 and epoch 3 are saved, then loaded into weight 0 and rate 0.1."""

    def probe(trainer):
        trainer.save_checkpoint("model.pt", *make(weight=7.0, lr=0.5), epoch=3)
        model, optimizer = make(weight=0.0, lr=0.1)
        epoch = trainer.load_checkpoint("model.pt", model, optimizer)
        if not isinstance(epoch, Integral | None):
            text = f"load_checkpoint returns {described(epoch)}. It must return the epoch, an int."
            raise WrongReturn(text)
        lr = optimizer.param_groups[0]["lr"]
        return {"weight": model.weight.item(), "lr": lr, "epoch": epoch}

    [loaded] = ranks(probe, 1, mistakes=[checkpoints.UNSAFE])

    saved = {"weight": 7.0, "lr": 0.5, "epoch": 3}
    check(
        loaded == saved,
        "state-lost",
        f"After saving {saved}, loading gives {loaded}. {lost_text(loaded, saved)}",
        guide=GUIDE,
    )


@exercise("phase1/load_checkpoint", points=1)
def test_buffers_and_momentum_are_restored(ranks):
    """Two ranks restore BatchNorm's buffers and the optimizer's momentum, and then step alike."""
    checkpoints.everything_restored(ranks)


@exercise("phase1/load_checkpoint", points=1)
def test_loading_works_on_a_single_rank(ranks):
    """One rank loads the file of epoch 9 alone, without a process group or the other ranks."""
    checkpoints.loads_on_a_single_rank(ranks, epoch=9)


@exercise("phase1/load_checkpoint", points=1)
def test_code_in_a_checkpoint_is_not_run(ranks):
    """Loading a checkpoint that contains code raises an error and does not run the code."""
    checkpoints.no_code_run(ranks)
