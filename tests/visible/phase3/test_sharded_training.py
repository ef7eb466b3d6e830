"""Visible tests of checkpoints and training: two ranks, a small model, few steps."""

from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from gradsync.testing import EXACT, case_by_case, check, exercise, raise_mistake
from gradsync.testing.values import close
from gradsync.text import listed, verb
from support.probes import raised
from support.probes.files import files_with_code
from support.probes.language_models import LENGTH, VOCABULARY, run_training
from support.probes.sharded import full_state
from support.probes.sharded_files import (
    batch_of,
    content_of,
    made,
    outcome,
    restore,
    step,
    working_in,
)
from support.promises import sharded_checkpoints
from support.rules.sharded_training import (
    batches_mistake,
    history_mistake,
    losses_mistake,
    norm_mistake,
    scale_mistake,
    seed_mistake,
    together,
)

GUIDE, TRAINING = "Checkpoints in shards", "Training a transformer"


def probe_saved(rank, world_size, trainer):
    """Save after a step; return the state, the files, and the state after a further step."""
    model, optimizer = made(trainer, 1)
    step(model, optimizer, *batch_of(rank, world_size, 1))
    trainer.save_sharded("kept", model, optimizer, 7)
    saved, content = full_state(model), content_of(Path("kept"))
    step(model, optimizer, *batch_of(rank, world_size, 2))
    return {"saved": saved, "content": content, "after": full_state(model)}


def probe_loaded(rank, world_size, trainer, content):
    """Load step 7 and save it twice, as steps 8 and 9; take a step, and load step 9."""
    if rank == 0:
        restore(Path("kept"), content)
    dist.barrier()
    model, optimizer = made(trainer, 2)
    number = trainer.load_sharded("kept", model, optimizer)
    loaded = full_state(model)
    for again in (8, 9):
        trainer.save_sharded("kept", model, optimizer, again)
    step(model, optimizer, *batch_of(rank, world_size, 2))
    after = full_state(model)
    latest = trainer.load_sharded("kept", model, optimizer)
    again = [latest, full_state(model)]
    return {"number": number, "loaded": loaded, "after": after, "again": again}


@exercise("phase3/save_sharded", points=1)
def test_both_ranks_write_and_then_return(ranks):
    """Step 7 is saved by two ranks: both see the same files, and load what was saved."""
    saved = ranks(probe_saved, 2)
    check(
        saved[0]["content"] and saved[0]["content"] == saved[1]["content"],
        "others-do-not-wait",
        "When save_sharded returns, the two ranks see different files, or none. It must return "
        "when the checkpoint is complete.",
        ranks=range(2),
        guide=GUIDE,
    )
    check_loaded(ranks(probe_loaded, 2, content=saved[0]["content"]), saved, "state-lost")


@exercise("phase3/save_sharded", points=1)
def test_a_save_that_fails_leaves_the_previous_one(ranks):
    """The second save, also of step 1, fails in `torch.save`: the first can still be loaded."""

    def probe(trainer):
        model, optimizer = made(trainer, 1)
        trainer.save_sharded("kept", model, optimizer, 1)
        saved = full_state(model)
        model, optimizer = made(trainer, 2)
        plain, torch.save = torch.save, _interrupted
        failed = raised(lambda: trainer.save_sharded("kept", model, optimizer, 1))
        torch.save = plain
        model, optimizer = made(trainer, 3)
        found = outcome(lambda: trainer.load_sharded("kept", model, optimizer), model)
        return [failed is not None, found, saved]

    seen = ranks(probe, 2)

    for rank, (failed, found, saved) in enumerate(seen):
        check(
            not failed or ("state" in found and close(found["state"], saved, EXACT)),
            "not-atomic",
            "torch.save fails in the middle of the second save. Now the first checkpoint can't be "
            f"loaded: {found.get('text') or 'its values differ'}.",
            ranks=[rank],
            guide=GUIDE,
        )


def _interrupted(_state, file, *_args, **_options):
    """Write half a file and fail, as on a full disk."""
    if hasattr(file, "write"):
        file.write(b"half")
    else:
        Path(file).write_bytes(b"half")
    raise OSError("No space left on device")


@exercise("phase3/save_sharded", points=1)
def test_a_crash_at_any_moment_leaves_a_checkpoint(ranks):
    """Step 1 is saved twice, and rank 1 is late. Whenever both ranks are killed, one save loads.

    They are killed in the second save, before each change to a file.
    """
    sharded_checkpoints.crash_leaves_a_checkpoint(ranks, [1, 1])


def check_loaded(seen, saved, code):
    for rank, value in enumerate(seen):
        check(
            value["number"] == 7,
            "state-lost",
            f"Step 7 was saved, but load_sharded returns {value['number']!r}.",
            ranks=[rank],
            guide=GUIDE,
        )
        for key, tolerance, what in (
            ("saved", EXACT, "load_sharded"),
            ("after", 512, "a further step"),
        ):
            own, right = value["loaded" if key == "saved" else "after"], saved[0][key]
            wrong = [name for name in right if not close(own.get(name), right[name], tolerance)]
            check(
                not wrong,
                code,
                f"Saved on {len(saved)} ranks, loaded on {len(seen)}: after {what}, "
                f"{listed(wrong)} {verb(wrong, 'differs', 'differ')} from the values without the "
                "interruption.",
                ranks=[rank],
                guide=GUIDE,
            )
        check(
            close(value["again"], [9, value["loaded"]], EXACT),
            code,
            f"Then {len(seen)} ranks save steps 8 and 9 in the same folder. load_sharded returns "
            f"{value['again'][0]!r}, or other values than were saved. It must read the files of "
            "the latest checkpoint only.",
            ranks=[rank],
            guide=GUIDE,
        )


@exercise("phase3/load_sharded", points=1)
def test_two_ranks_load_what_three_saved(ranks):
    """Saved on 3 ranks, loaded on 2: the same parameters, and the same next step.

    The two then save twice in the same folder, and load that.
    """
    saved = ranks(probe_saved, 3)

    seen = ranks(probe_loaded, 2, content=saved[0]["content"])

    check_loaded(seen, saved, "checkpoint-not-resharded")


@exercise("phase3/load_sharded", points=1)
def test_what_is_no_checkpoint_is_refused(ranks):
    """Without files, without one, with half of one or with code, both ranks raise and name it."""

    def probe(rank, trainer, damaged):
        model, optimizer = made(trainer, 2)
        found = []
        for number, content in enumerate(damaged):
            folder = Path(f"damage{number}", "kept")
            if rank == 0:
                restore(folder, content)
            dist.barrier()
            with working_in(folder.parent):
                seen = outcome(lambda: trainer.load_sharded("kept", model, optimizer))
            found.append(seen)
        return [found, Path(folder.parent, "ran").exists()]  # the last one has code

    saved = ranks(probe_saved, 2)
    content = saved[0]["content"]
    name = max(content, key=lambda name: len(content[name]))
    damaged = {
        "no file": {},
        f"all files but {name}": {other: content[other] for other in content if other != name},
        f"half of {name}": {**content, name: content[name][: len(content[name]) // 2]},
        "code": {**content, name: files_with_code({"model": {}})[0]},
    }

    seen = ranks(probe, 2, damaged=list(damaged.values()))

    for rank, (found, ran) in enumerate(seen):
        check(
            not ran,
            "unsafe-load",
            "load_sharded runs code that is in a file. Load tensors and plain values only.",
            ranks=[rank],
            guide=GUIDE,
        )
        for one, what in zip(found, damaged, strict=True):
            check(
                "error" in one and (what == "code" or one["kind"]),
                "incomplete-accepted",
                f"With {what} in the folder, load_sharded raises {one.get('error') or 'nothing'} "
                f"on rank {rank}. It must raise a ValueError or a FileNotFoundError on every rank, "
                "also where the rank's own file is whole.",
                ranks=[rank],
                guide=GUIDE,
            )
        for one, what in zip(found[1:3], (name, f"Half of {name}"), strict=True):
            check(
                Path(name).name in one["text"],
                "incomplete-accepted",
                f"{what} is missing, but the message does not name it: {one['text']}.",
                ranks=[rank],
                guide=GUIDE,
            )


def sequences():
    """Return 10 sequences of 5 tokens, each with other inputs."""
    rows = np.random.default_rng(0).integers(0, VOCABULARY, (10, LENGTH + 1))
    rows[:, 0] = range(10)
    return rows


def probe_train(rank, world_size, trainer, rows, runs):
    return [run_training(trainer, rank, world_size, 1, rows, **options) for options in runs]


@exercise("phase3/train", points=1)
def test_two_ranks_train_like_one(ranks):
    """4 steps of 2 x 2 sequences on two ranks have the losses of one rank with batches of 4."""
    options = {"steps": 4, "lr": 0.05}

    two = ranks(probe_train, 2, rows=sequences(), runs=[{**options, "batch_size": 2}])
    one = ranks(probe_train, 1, rows=sequences(), runs=[{**options, "batch_size": 4}])

    raise_mistake(history_mistake([value[0] for value in two], 0, 4))
    raise_mistake(losses_mistake([value[0] for value in two], 1, sequences()))
    losses = [[entry["loss"] for entry in value[0]["history"]] for value in (*two, *one)]
    check(
        all(len(own) == 4 for own in losses),
        "wrong-length",
        f"After 4 steps, the histories have {[len(own) for own in losses]} entries.",
        guide=TRAINING,
    )
    check(
        np.allclose(losses[0], losses[1], atol=1e-5),
        "loss-is-local",
        f"The losses are {np.round(losses[0], 4).tolist()} on rank 0, but "
        f"{np.round(losses[1], 4).tolist()} on rank 1. Return the mean over all ranks' tokens.",
        ranks=range(2),
        guide=TRAINING,
    )
    check(
        np.allclose(losses[0], losses[2], atol=1e-4),
        "differs-from-single-process",
        f"The losses are {np.round(losses[0], 4).tolist()} on two ranks, but "
        f"{np.round(losses[2], 4).tolist()} on one rank with the same global batches.",
        ranks=range(2),
        guide=TRAINING,
    )
    printed = [bool(value[0]["printed"]) for value in two]
    check(
        printed == [True, False],
        "every-rank-prints" if printed[1] else "wrong-output",
        f"Ranks 0 and 1 print: {printed}. Rank 0 alone prints.",
        guide=TRAINING,
    )


@exercise("phase3/train", points=1)
def test_training_resumes(ranks):
    """With a folder, 7 steps and then 10: the second call ends the second epoch, of 5 steps."""
    options = {"lr": 0.05, "batch_size": 1, "resume_from": "run"}
    runs = [{**options, "steps": 7}, {**options, "steps": 10}]
    runs.append({"lr": 0.05, "batch_size": 1, "steps": 10})

    seen = ranks(probe_train, 2, rows=sequences(), runs=runs)

    raise_mistake(history_mistake([value[1] for value in seen], 7, 3))
    raise_mistake(batches_mistake(together([value[2] for value in seen]), 10, 2, 1))
    first, second, whole = ([e["loss"] for e in seen[0][n]["history"]] for n in range(3))
    check(
        len(first) == 7 and len(second) == 3 and np.allclose(first + second, whole, atol=1e-4),
        "resume-lost",
        f"The last 3 of 10 losses are {np.round(second, 4).tolist()} in a call that resumes, and "
        f"{np.round(whole[7:], 4).tolist()} without interruption. Does the checkpoint have all "
        "that a step depends on: model, optimizer, scaler, and the loader's place in the epoch?",
        ranks=range(2),
        guide=TRAINING,
    )


@exercise("phase3/train", points=1)
def test_all_options_have_an_effect(ranks):
    """A small max_norm, bfloat16, float16 and another seed all have an effect."""
    options = {"lr": 0.05, "batch_size": 2, "steps": 4}
    changes = ({}, {"compute": "bfloat16"}, {"max_norm": 1e-9}, {"seed": 1}, {"compute": "float16"})
    runs = [{**options, **change} for change in changes]

    seen = ranks(probe_train, 2, rows=sequences(), runs=runs)

    every = case_by_case(seen, len(runs))
    raise_mistake(seed_mistake(every[0], every[3]))
    raise_mistake(scale_mistake(every[4], every[0]))
    raise_mistake(norm_mistake(every[4], every[0]))
    plain, low, clipped = ([e["loss"] for e in seen[0][n]["history"]] for n in range(3))
    check(
        low != plain and np.allclose(low, plain, atol=0.2),
        "wrong-dtype-sent",
        f"The losses are {np.round(low, 4).tolist()} in bfloat16 and "
        f"{np.round(plain, 4).tolist()} in float32: they must be near, but not equal.",
        guide=TRAINING,
    )
    check(
        not np.allclose(clipped[1:], plain[1:], atol=1e-3),
        "not-clipped",
        "With max_norm=1e-9, the losses are those of steps without clipping.",
        guide=TRAINING,
    )
