"""The reference trainer, killed at any step, continues with more or fewer ranks."""

import functools
import os
import random
import signal
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradsync import run_ranks
from support.probes import Info, raised
from support.probes.files import limit_writes

PHASE = Path(__file__).parents[3] / "solutions" / "phase2"
RANKS, SAMPLES, EPOCHS = 3, 90, 3
STEPS = SAMPLES // RANKS  # in an epoch, in batches of one sample per rank
FIRST_FILE = 20  # steps until the first file is written
SEED = 11


class Net(nn.Module):
    """A model that writes each sample of its training to a file, and may kill its process."""

    def __init__(self, notes, dies_at):
        super().__init__()
        torch.manual_seed(SEED)
        self.layer = nn.Linear(1, 2)
        self.notes, self.dies_at, self.step = notes, dies_at, 0

    def forward(self, inputs):
        if self.training:
            if self.step == self.dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.step += 1
            with self.notes.open("a") as file:
                file.writelines(f"{int(number)}\n" for number in inputs[:, 0])
        return self.layer(inputs / SAMPLES)


def train(rank, world_size, notes, file, dies_at=None, optimizer=torch.optim.SGD):
    sys.path.insert(0, str(PHASE))
    import template_trainer

    template_trainer.torch.optim.SGD = optimizer  # in this rank's process alone
    numbers = torch.arange(SAMPLES)
    data = TensorDataset(numbers[:, None].float(), numbers % 2)
    model = Net(notes / str(rank), dies_at)
    options = {"epochs": EPOCHS, "batch_size": 1, "lr": 0.1, "resume_from": file}
    template_trainer.train(Info(rank, world_size), model, data, data, **options)
    return model.layer.weight.detach()


def taken(notes):
    """Return the samples that each rank was trained on, in order, by rank."""
    return [
        list(map(int, (notes / rank).read_text().split())) for rank in sorted(os.listdir(notes))
    ]


def kill_while_training(notes, file, at, lost, **options):
    """Train until a rank is killed before its step `at`; return the samples of each rank."""

    def function(rank, world_size):
        dies_at = at if rank == lost else None
        try:
            train(rank, world_size, notes, file, dies_at, **options)
        except RuntimeError:
            return "ended with an error"
        return "ended well"

    seen = run_ranks(function, RANKS, may_fail=[lost])

    assert {seen[rank] for rank in seen.answered} == {"ended with an error"}
    return taken(notes)


def moments():
    """Return random steps after the first file, each with a rank to kill."""
    draw = random.Random(SEED)
    return [(draw.randrange(FIRST_FILE, EPOCHS * STEPS), draw.randrange(RANKS)) for _ in range(4)]


@pytest.mark.parametrize(("at", "lost"), moments())
@pytest.mark.parametrize("world_size", [2, 5])
def test_after_a_kill_every_sample_of_the_epoch_is_seen_once(tmp_path, at, lost, world_size):
    first, second, file = tmp_path / "first", tmp_path / "second", tmp_path / "progress.pt"
    first.mkdir()
    second.mkdir()
    before = kill_while_training(first, file, at, lost)
    state = torch.load(file, weights_only=True)
    epoch, seen = state["epoch"], state["samples_seen"]

    weights = run_ranks(train, world_size, notes=second, file=file)

    after = taken(second)
    start, left, share = epoch * STEPS, (SAMPLES - seen) // world_size, SAMPLES // world_size
    this_epoch = cut(before, start, start + seen // RANKS) + cut(after, 0, left)
    assert epoch + seen > 0
    assert sorted(this_epoch) == list(range(SAMPLES))
    for begin in range(left, left + (EPOCHS - epoch - 1) * share, share):
        assert sorted(cut(after, begin, begin + share)) == list(range(SAMPLES))
    assert all(torch.equal(own, weights[0]) for own in weights)


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(torch.optim.SGD, id="no state"),
        pytest.param(functools.partial(torch.optim.SGD, momentum=0.9), id="momentum"),
        pytest.param(torch.optim.Adam, id="Adam"),
    ],
)
def test_a_resumed_run_ends_with_the_weights_of_a_run_without_interruption(tmp_path, optimizer):
    notes = {name: tmp_path / name for name in ("whole", "first", "second")}
    for folder in notes.values():
        folder.mkdir()
    whole = run_ranks(train, RANKS, notes=notes["whole"], file=None, optimizer=optimizer)
    file = tmp_path / "progress.pt"
    kill_while_training(notes["first"], file, STEPS + FIRST_FILE, 1, optimizer=optimizer)

    weights = run_ranks(train, RANKS, notes=notes["second"], file=file, optimizer=optimizer)

    assert all(torch.equal(own, whole[0]) for own in weights)


def test_a_failed_write_leaves_no_incomplete_file(tmp_path):
    notes, files = tmp_path / "notes", tmp_path / "files"
    notes.mkdir()
    files.mkdir()

    def function(rank, world_size):
        limit_writes(1000)  # the file has more bytes
        return type(raised(lambda: train(rank, world_size, notes, files / "progress.pt"))).__name__

    seen = run_ranks(function, 1)

    assert seen[0] == "RuntimeError"
    assert list(files.iterdir()) == []


def cut(samples, start, end):
    """Return the samples of all ranks from one of their steps to another."""
    return [number for own in samples for number in own[start:end]]
