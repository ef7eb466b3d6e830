"""What checkpoints promise: only rank 0 writes, every rank reads, no code is run."""

import os
from numbers import Integral
from pathlib import Path

import torch
from torch import nn

from gradsync.testing import check, each, raise_mistake, seen_of
from gradsync.testing.values import close
from gradsync.text import ranks_text
from support.probes import raised
from support.probes.files import (
    HARMS,
    content_of,
    file_changes,
    files_with_code,
    lift_limit,
    limit_writes,
    refused_in,
)
from support.probes.late_rank import pass_gate
from support.probes.trained_models import make, state_of, weights_after_a_step
from support.rules.checkpoints import (
    epoch_not_an_int,
    file_missing,
    former_file_harmed,
    former_file_not_replaced,
    former_file_seen,
    next_save_fails,
    other_ranks_write,
    step_after_load_differs,
    too_small,
    trainable_changed,
    unsafe_content,
    unsafe_file_refused,
    writes_too,
    written_in_another_folder,
)
from support.rules.launching import without_a_group

GUIDE = "Checkpoints"
UNSAFE = unsafe_file_refused(GUIDE)


def only_rank_0_writes(ranks, world_size):
    """Check that no rank but rank 0 writes to the disk."""

    def probe(rank, world_size, trainer):
        model, optimizer = make(0, size=200)  # 160 kB
        if rank != 0:  # any other rank that writes exceeds this limit
            limit_writes(20_000)
        pass_gate("late", rank, world_size, last=0)  # by now, a rank that also writes has done so
        trainer.save_checkpoint("there.pt", model, optimizer, 3)
        there = Path("there.pt")
        return there.stat().st_size if there.exists() else -1

    seen = ranks(probe, world_size, mistakes=[writes_too(GUIDE)])

    raise_mistake(file_missing([size >= 0 for size in seen], GUIDE))
    raise_mistake(too_small(seen[0], 4 * 200 * 200, GUIDE))


def file_there_on_every_rank(ranks, world_size):
    """Check that the new file is there when save_checkpoint returns, even if rank 0 is late."""

    def probe(rank, world_size, trainer):
        model, optimizer = make(0)
        Path("saved").mkdir(exist_ok=True)  # a folder in which only save_checkpoint writes
        os.chdir("saved")
        changes = file_changes()
        pass_gate("../late", rank, world_size, last=0)
        early = os.listdir() if rank == 0 else []
        trainer.save_checkpoint(Path("there.pt"), model, optimizer, 3)
        is_there = os.path.exists("there.pt")
        made = {path for done, path in changes if done in ("made", "emptied")}
        names = sorted(path.name for path in made if path.parent == Path.cwd())
        previous = content_of("there.pt")
        pass_gate("../later", rank, world_size, last=0)
        trainer.save_checkpoint(Path("there.pt"), *make(1), 4)
        contents = [previous, content_of("there.pt")]
        refused = refused_in("there.pt", lambda: trainer.load_checkpoint("there.pt", *make(0)))
        return [early, is_there, names, refused, contents]

    seen = ranks(probe, world_size)

    check(
        seen[0][0] == [],
        "every-rank-writes",
        f"Before rank 0 called save_checkpoint, {', '.join(seen[0][0])} already existed, so "
        "another rank wrote it. Only rank 0 may write.",
        guide=GUIDE,
    )
    raise_mistake(file_missing([value[1] for value in seen], GUIDE))
    raise_mistake(former_file_seen([value[4] for value in seen], GUIDE))
    raise_mistake(too_small(len(seen[0][4][1]), 4 * 8 * 8, GUIDE))
    raise_mistake(other_ranks_write([value[2] for value in seen], GUIDE))
    raise_mistake(unsafe_content(seen[0][3], GUIDE))


def probe_crashes(trainer):
    """Save over a checkpoint, then with a full disk, then again; report what happened to the file.

    Return None if the first save leaves no file.
    """
    there = Path("saved", "there.pt")
    there.parent.mkdir()
    model, optimizer = make(0, size=200)  # 160 kB
    trainer.save_checkpoint(str(there), model, optimizer, 3)
    if not there.exists():
        return None
    first = there.read_bytes()
    changes = file_changes()
    trainer.save_checkpoint(str(there), *make(1, size=200), 4)
    befell = [done for done, path in changes if path == there.absolute()]
    harm = [done for done in befell if done in HARMS]
    before = there.read_bytes()
    limit_writes(50_000)
    error = raised(lambda: trainer.save_checkpoint(str(there), model, optimizer, 5))
    ended = "with an error" if error else "without an error"
    same = there.exists() and there.read_bytes() == before
    lift_limit()
    error = raised(lambda: trainer.save_checkpoint(str(there), model, optimizer, 6))
    again = error and f"{type(error).__name__}: {error}"
    renewed = there.exists() and there.read_bytes() != before
    return [before != first, ended, same, harm, "brought" in befell, again, renewed]


def former_file_survives_crash(ranks):
    """Check that the previous checkpoint is complete if the disk is full halfway through a save."""
    [outcome] = ranks(probe_crashes, 1)

    raise_mistake(file_missing([outcome is not None], GUIDE))
    replaced, ended, same, harm, brought, again, renewed = outcome

    raise_mistake(former_file_not_replaced(replaced, GUIDE))
    check(
        same,
        "not-atomic",
        "A second save_checkpoint failed halfway, as on a full disk, and the first checkpoint is "
        "lost: no complete file is left. Keep the previous file until the new one is complete.",
        ranks=[0],
        guide=GUIDE,
    )
    check(
        ended == "with an error",
        "not-atomic",
        f"save_checkpoint could not write the file, as on a full disk, but ended {ended}. Raise "
        "the error, or the user does not know that this checkpoint is missing.",
        ranks=[0],
        guide=GUIDE,
    )
    raise_mistake(former_file_harmed(harm, GUIDE))
    raise_mistake(written_in_another_folder(brought, GUIDE))
    raise_mistake(next_save_fails(again, renewed, GUIDE))


def failed_save_reported(ranks):
    """Check that save_checkpoint does not return on rank 1 if rank 0 could not write the file."""

    def probe(rank, trainer):
        model, optimizer = make(0, size=200)  # 160 kB
        if rank == 0:
            limit_writes(50_000)
        return raised(lambda: trainer.save_checkpoint("there.pt", model, optimizer, 3)) is None

    seen = seen_of(lambda: ranks(probe, 2))  # rank 1 may wait until the run ends

    check(
        seen.failure is not None or list(seen) != [False, True],
        "others-do-not-wait",
        "Rank 0 could not write the file and raised an error, but save_checkpoint returned on rank "
        "1 as if the file existed. Does a `finally` or an `except` let rank 1 go on? Reach the "
        "collective for which the other ranks wait only if the file is complete.",
        ranks=[1],
        guide=GUIDE,
    )


def optimizer_in_file(ranks):
    """Check that the file of a model with momentum is larger than that of one without."""
    size = 100

    def probe(trainer, size):
        sizes = []
        for momentum in (0.0, 0.9):
            model = nn.Linear(size, size, bias=False)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
            model.weight.grad = torch.rand(size, size)
            optimizer.step()
            trainer.save_checkpoint(f"{momentum}.pt", model, optimizer, 3)
            sizes.append(len(content_of(f"{momentum}.pt")))
        return sizes

    [[without, saved]] = ranks(probe, 1, size=size)

    momentum = 4 * size**2  # bytes
    check(
        saved - without > momentum / 2,  # a file may be compressed
        "state-lost",
        f"The optimizer has {momentum} bytes of momentum, but the file of save_checkpoint is only "
        f"{saved - without} bytes larger than without momentum. Save the state of the optimizer "
        "too, or training resumes without it.",
        guide=GUIDE,
    )


def everything_restored(ranks):
    """Check that loading restores the parameters, buffers, optimizer's state and epoch."""

    def probe(rank, trainer):
        trainer.save_checkpoint("there.pt", *make(0), 7)
        model, optimizer = make(rank + 1)
        epoch = trainer.load_checkpoint("there.pt", model, optimizer)
        state = state_of(model, optimizer)
        trainable = [param.requires_grad for param in model.parameters()]
        kind = None if isinstance(epoch, Integral | None) else type(epoch).__name__
        after = weights_after_a_step(model, optimizer)
        more = {"loaded": state[0], "after": after, "trainable": trainable, "kind": kind}
        return [number(epoch), *state, more]

    seen = ranks(probe, 2, mistakes=[UNSAFE])

    extras = each(seen, lambda value: value[-1])
    raise_mistake(epoch_not_an_int(GUIDE)(extras, None))
    names = (
        "the epoch",
        "the model",
        "the optimizer's momentum",
        "a setting of the optimizer (such as its learning rate or its momentum)",
    )
    expected, after, trainable = state_of_saved(seen, ranks)
    for index, name in enumerate(names):
        wrong = [rank for rank in range(2) if not close(seen[rank][index], expected[index], 0)]
        text = f"On {ranks_text(wrong)}, {name} is not restored: after load_checkpoint, it differs "
        text += "from the saved one."
        if wrong and index == 0:
            text = (
                f"On {ranks_text(wrong)}, load_checkpoint returned {seen[wrong[0]][0]!r} after "
                "save_checkpoint was called with epoch=7. Save this number, and return it."
            )
        check(
            not wrong,
            "state-lost",
            text,
            ranks=wrong,
            guide=GUIDE,
        )
    for rule in (trainable_changed(trainable, GUIDE), step_after_load_differs(after, GUIDE)):
        raise_mistake(rule(extras, None))


def number(epoch):
    """Return the epoch if it is an integer, otherwise None: not every object can be sent."""
    return int(epoch) if isinstance(epoch, Integral) else None


def state_of_saved(seen, ranks):
    """Return the saved values, the weights one step later, and which parameters are trainable."""

    def probe():
        model, optimizer = make(0)
        state = [7, *state_of(model, optimizer)]
        trainable = [param.requires_grad for param in model.parameters()]
        return [state, weights_after_a_step(model, optimizer), trainable]

    [saved] = ranks(probe, 1, process_group=False)
    return saved


def written(ranks, epoch=7):
    """Return the file that save_checkpoint writes for an epoch."""

    def write(trainer, epoch):
        trainer.save_checkpoint("there.pt", *make(0), epoch)
        return Path("there.pt").read_bytes()

    [content] = ranks(write, 1, epoch=epoch)
    return content


def loads_on_a_single_rank(ranks, epoch):
    """Check that one rank loads the file alone, with a process group and without one."""

    def read(rank, trainer, content):
        if rank == 1:  # the ranks share a folder: only rank 0 writes in it
            return None
        Path("there.pt").write_bytes(content)
        return number(trainer.load_checkpoint("there.pt", *make(1)))

    content = written(ranks, epoch)
    no_group = without_a_group(
        "load_checkpoint does not work on a single rank. Each rank must read the file on its own, "
        "without a process group and without the other ranks.",
        GUIDE,
    )
    alone = ranks(read, 1, process_group=False, mistakes=[no_group, UNSAFE], content=content)
    beside = ranks(read, 2, content=content)

    check(
        alone[0] == beside[0] == epoch,
        "state-lost",
        "load_checkpoint on a single rank does not return the epoch that was saved.",
        guide=GUIDE,
    )


def no_code_run(ranks):
    """Check that loading a checkpoint that contains code raises an error and does not run it."""

    def probe(trainer, files, good):
        Path("good.pt").write_bytes(good)
        trainer.load_checkpoint("good.pt", *make(0))  # a file without code must load
        refused = 0
        for content in files:
            Path("bad.pt").write_bytes(content)
            refused += raised(lambda: trainer.load_checkpoint("bad.pt", *make(0))) is not None
        return [os.path.exists("ran"), refused]

    files = files_with_code({"model": {}, "optimizer": {}, "epoch": 1})
    good = written(ranks)
    [[ran, refused]] = ranks(
        probe, 1, process_group=False, mistakes=[UNSAFE], files=files, good=good
    )

    check(
        not ran and refused == len(files),
        "unsafe-load",
        "A checkpoint contained code, and load_checkpoint "
        f"{'ran it' if ran else 'did not raise an error'}. A checkpoint from an unknown source "
        "could do anything. Load only tensors and plain values.",
        ranks=[0],
        guide=GUIDE,
    )
