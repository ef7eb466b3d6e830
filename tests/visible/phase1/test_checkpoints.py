"""The visible tests of checkpoints, for `gradsync check`."""

import contextlib
from pathlib import Path

import torch
from torch import nn

from gradsync.testing import check, exercise
from gradsync.text import FORGOTTEN
from support.probes.late_rank import pass_gate

GUIDE = "Checkpoints"


def make(weight, lr):
    """Return the model `output = weight * input`, and its optimizer."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, weight)
    return model, torch.optim.SGD(model.parameters(), lr=lr)


@exercise("phase1/save_checkpoint", points=1)
def test_rank_0_writes_and_rank_1_waits(ranks):
    """Rank 0 is late: no other rank writes the file, and rank 1 waits until it exists."""

    def probe(rank, trainer):
        model, optimizer = make(weight=1.0, lr=0.1)
        pass_gate("late", rank, 2, last=0)
        early = Path("model.pt").exists()
        trainer.save_checkpoint("model.pt", model, optimizer, epoch=1)
        return {"there before": early, "there after": Path("model.pt").exists()}

    seen = ranks(probe, world_size=2)

    check(
        not seen[0]["there before"],
        "every-rank-writes",
        "Rank 1 wrote the file before rank 0 had called save_checkpoint. Only rank 0 may write, or "
        "the ranks overwrite each other's file.",
        ranks=[1],
        guide=GUIDE,
    )
    check(
        seen[0]["there after"],
        "exception",
        "save_checkpoint('model.pt', ...) returned on rank 0, but there is no file model.pt.",
        ranks=[0],
        guide=GUIDE,
    )
    check(
        seen[1]["there after"],
        "others-do-not-wait",
        "save_checkpoint returned on rank 1 before rank 0 had written the file. Rank 1 must wait, "
        "or it may read a file that does not exist yet.",
        ranks=[1],
        guide=GUIDE,
    )


class PowerCut:
    """An object that raises an error while it is saved."""

    def __reduce__(self):
        raise OSError("the power is gone")


@exercise("phase1/save_checkpoint", points=1)
def test_the_former_checkpoint_survives_a_failed_save(ranks):
    """If the second save fails halfway, the file of the first one is still there and complete."""

    def probe(trainer):
        model, optimizer = make(weight=1.0, lr=0.1)
        trainer.save_checkpoint("model.pt", model, optimizer, epoch=1)
        before = Path("model.pt").read_bytes()
        optimizer.param_groups[0]["note"] = PowerCut()
        with contextlib.suppress(Exception):
            trainer.save_checkpoint("model.pt", model, optimizer, epoch=2)
        return Path("model.pt").exists() and Path("model.pt").read_bytes() == before

    [survived] = ranks(probe, world_size=1)

    check(
        survived,
        "not-atomic",
        "A save failed halfway, and the previous checkpoint was lost. Keep the old file until the "
        "new one is complete.",
        guide=GUIDE,
    )


def lost_text(loaded, saved):
    """Return the advice for the first value that differs from the saved one."""
    advice = {
        "weight": "The weight is the model's: save and load the state of the model.",
        "lr": "`lr` is the optimizer's learning rate: save and load the state of the optimizer.",
        "epoch": "`epoch` is the return value of load_checkpoint: return the saved epoch.",
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
        lr = optimizer.param_groups[0]["lr"]
        return {"weight": model.weight.item(), "lr": lr, "epoch": epoch}

    [loaded] = ranks(probe, world_size=1)

    saved = {"weight": 7.0, "lr": 0.5, "epoch": 3}
    check(
        loaded == saved,
        "state-lost",
        f"After saving {saved}, loading gives {loaded}. {lost_text(loaded, saved)}",
        guide=GUIDE,
    )


class Trap:
    """An object that creates a file named `caught` if it is unpickled without care."""

    def __reduce__(self):
        return (open, ("caught", "w"))


@exercise("phase1/load_checkpoint", points=1)
def test_code_in_a_checkpoint_is_not_run(ranks):
    """Loading a checkpoint that contains code does not run the code."""

    def probe(trainer):
        model, optimizer = make(weight=1.0, lr=0.1)
        trainer.save_checkpoint("good.pt", model, optimizer, epoch=1)
        trainer.load_checkpoint("good.pt", model, optimizer)
        torch.save({"model": model.state_dict(), "surprise": Trap()}, "bad.pt")
        with contextlib.suppress(Exception):  # it should raise an error
            trainer.load_checkpoint("bad.pt", model, optimizer)
        return Path("caught").exists()

    [caught] = ranks(probe, world_size=1)

    check(
        not caught,
        "unsafe-load",
        "load_checkpoint ran code from the file, which could have deleted all your files. Load "
        "only tensors and plain values.",
        guide=GUIDE,
    )
