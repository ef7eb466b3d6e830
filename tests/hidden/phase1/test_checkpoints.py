"""One rank writes, whole or not at all; every rank reads for itself, and runs nothing."""

import os
import time
from pathlib import Path

import torch
from torch import nn

from gradsync.diagnose.checkpoints import writes_too
from gradsync.diagnose.launching import without_a_group
from gradsync.diagnose.values import close
from gradsync.probes import raised
from gradsync.probes.files import files_with_code, limit_writes
from gradsync.testing import check, exercise

GUIDE = "Checkpoints"


def make(seed, size=8):
    """Return a model with buffers and an optimizer with momentum, both with a past."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(size, size), nn.BatchNorm1d(size), nn.Linear(size, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + seed, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.rand(4, size)).sum().backward()
        optimizer.step()
    return model, optimizer


def state_of(model, optimizer):
    momenta = [s["momentum_buffer"] for s in optimizer.state_dict()["state"].values()]
    return [dict(model.state_dict()), momenta, optimizer.param_groups[0]["lr"]]


@exercise("phase1/save_checkpoint", points=1.5)
def test_rank_0_alone_writes(ranks):
    """The other ranks write nothing."""

    def probe(rank, trainer):
        model, optimizer = make(0, size=200)  # 160 kB
        if rank != 0:  # a write by another rank runs into this limit
            limit_writes(20_000)
        else:
            time.sleep(0.2)  # whoever writes as well has done so by then
        trainer.save_checkpoint("there.pt", model, optimizer, 3)
        return sorted(os.listdir())

    seen = ranks(probe, 3, mistakes=[writes_too(GUIDE)])

    absent = [rank for rank in range(3) if "there.pt" not in seen[rank]]
    check(
        not absent,
        "others-do-not-wait",
        f"when save_checkpoint returned on rank {' and '.join(map(str, absent))}, the file was not "
        f"there: every rank has to wait until rank 0 has written it (GUIDELINES, {GUIDE})",
        ranks=absent,
        guide=GUIDE,
    )


@exercise("phase1/save_checkpoint", points=1.5)
def test_when_it_returns_the_file_is_there_for_every_rank(ranks):
    """The other ranks wait until rank 0, which may be late, has written."""

    def probe(rank, trainer):
        model, optimizer = make(0)
        Path("saved").mkdir(exist_ok=True)  # where nobody but save_checkpoint has a reason to write
        os.chdir("saved")
        early = []
        if rank == 0:
            time.sleep(0.2)
            early = os.listdir()
        trainer.save_checkpoint(Path("there.pt"), model, optimizer, 3)
        return [early, os.path.exists("there.pt")]

    seen = ranks(probe, 3)

    check(
        seen[0][0] == [],
        "every-rank-writes",
        f"before rank 0 had called save_checkpoint, {', '.join(seen[0][0])} was there already: "
        f"another rank wrote it (GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )
    absent = [rank for rank in range(3) if not seen[rank][1]]
    check(
        not absent,
        "others-do-not-wait",
        f"save_checkpoint returned on rank {', '.join(map(str, absent))} before the file was "
        f"there: every rank has to wait until rank 0 has written it (GUIDELINES, {GUIDE})",
        ranks=absent,
        guide=GUIDE,
    )


@exercise("phase1/save_checkpoint", points=2)
def test_a_crash_midway_leaves_the_former_file(ranks):
    """When the disk fills up halfway, the checkpoint from before is still whole."""

    def probe(trainer):
        model, optimizer = make(0, size=200)  # 160 kB
        trainer.save_checkpoint("there.pt", model, optimizer, 3)
        before = Path("there.pt").read_bytes()
        limit_writes(50_000)
        error = raised(lambda: trainer.save_checkpoint("there.pt", model, optimizer, 4))
        ended = "with an error" if error else "as if all were well"
        after = Path("there.pt")
        return [ended, after.exists() and after.read_bytes() == before]

    [seen] = ranks(probe, 1)

    ended, same = seen
    check(
        same,
        "not-atomic",
        "a second save_checkpoint broke off halfway, as on a full disk, and the checkpoint from "
        "before it is lost: now there is no whole one. The former file has to stay until the new "
        f"one is complete (GUIDELINES, {GUIDE})",
        ranks=[0],
        guide=GUIDE,
    )
    check(
        ended == "with an error",
        "not-atomic",
        f"save_checkpoint could not write the file, as on a full disk, and ended {ended}: nobody "
        f"would know that this checkpoint is missing (GUIDELINES, {GUIDE})",
        ranks=[0],
        guide=GUIDE,
    )


@exercise("phase1/load_checkpoint", points=1.5)
def test_everything_comes_back(ranks):
    """Parameters, buffers, the optimizer's state and the epoch are those that were saved."""

    def probe(rank, trainer):
        trainer.save_checkpoint("there.pt", *make(0), 7)
        model, optimizer = make(rank + 1)
        epoch = trainer.load_checkpoint("there.pt", model, optimizer)
        return [epoch, *state_of(model, optimizer)]

    seen = ranks(probe, 2)

    names = ("the epoch", "the model", "the optimizer's momentum", "the learning rate")
    expected = [7, *state_of_saved(seen, ranks)]
    for index, name in enumerate(names):
        wrong = [rank for rank in range(2) if not close(seen[rank][index], expected[index], 0)]
        shown = f", {seen[wrong[0]][0]!r} where 7 was saved" if wrong and index == 0 else ""
        check(
            not wrong,
            "state-lost",
            f"after save_checkpoint and load_checkpoint {name} is not what was saved{shown}, on "
            f"rank {', '.join(map(str, wrong))} (GUIDELINES, {GUIDE})",
            ranks=wrong,
            guide=GUIDE,
        )


def state_of_saved(seen, ranks):
    """Return the state that was saved, as a rank of its own works it out."""

    def probe():
        return state_of(*make(0))

    [state] = ranks(probe, 1, process_group=False)
    return state


def written(ranks):
    """Return what save_checkpoint writes of epoch 7."""

    def write(trainer):
        trainer.save_checkpoint("there.pt", *make(0), 7)
        return Path("there.pt").read_bytes()

    [content] = ranks(write, 1)
    return content


@exercise("phase1/load_checkpoint", points=0.5)
def test_each_rank_reads_for_itself(ranks):
    """Loading needs no process group and no other rank."""

    def read(rank, trainer, content):
        Path("there.pt").write_bytes(content)
        if rank == 1:
            return 7
        return trainer.load_checkpoint("there.pt", *make(1))

    content = written(ranks)
    no_group = without_a_group(
        "load_checkpoint does not work on a rank by itself: each rank reads the file on its own, "
        "and needs neither a process group nor the others",
        GUIDE,
    )
    alone = ranks(read, 1, process_group=False, mistakes=[no_group], content=content)
    beside = ranks(read, 2, content=content)

    check(
        alone[0] == beside[0] == 7,
        "state-lost",
        "load_checkpoint by one rank alone does not return the epoch that was saved "
        f"(GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )


@exercise("phase1/load_checkpoint", points=1)
def test_code_in_the_file_is_not_run(ranks):
    """A checkpoint with code in it is refused, not run."""

    def probe(trainer, files, good):
        Path("good.pt").write_bytes(good)
        trainer.load_checkpoint("good.pt", *make(0))  # one without code is not refused
        refused = 0
        for content in files:
            Path("bad.pt").write_bytes(content)
            refused += raised(lambda: trainer.load_checkpoint("bad.pt", *make(0))) is not None
        return [os.path.exists("ran"), refused]

    files = files_with_code({"model": {}, "optimizer": {}, "epoch": 1})
    good = written(ranks)
    [[ran, refused]] = ranks(probe, 1, process_group=False, files=files, good=good)

    check(
        not ran and refused == len(files),
        "unsafe-load",
        f"load_checkpoint of a file with code in it {'ran that code' if ran else 'did not fail'}: "
        "a checkpoint from elsewhere could do anything. Only tensors and plain values may be read "
        f"(GUIDELINES, {GUIDE})",
        ranks=[0],
        guide=GUIDE,
    )
