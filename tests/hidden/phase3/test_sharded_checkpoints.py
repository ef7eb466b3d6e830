"""Checkpoints of which each rank writes a part: whole or not at all, for any number of ranks."""

from pathlib import Path

import torch.distributed as dist

from gradsync.records import Diagnosis
from gradsync.testing import EXACT, assert_on_every_rank, each, exercise
from gradsync.testing.values import close
from gradsync.text import listed, ranks_text
from support.probes.files import files_with_code, lift_limit, limit_writes
from support.probes.late_rank import pass_gate, wait_for
from support.probes.sharded import full_state
from support.probes.sharded_files import (
    batch_of,
    content_of,
    late_writes,
    made,
    outcome,
    restore,
    step,
    working_in,
)
from support.promises import sharded_checkpoints
from support.promises.sharded_checkpoints import GUIDE, check_that

WIDE = 4000  # hidden size of a model whose parts are larger than any other file


def probe_saved(rank, world_size, trainer, seed, number):
    """Train for two steps and save; return the state, what follows it, and all files."""
    model, optimizer = made(trainer, seed)
    for batch in (1, 2):
        step(model, optimizer, *batch_of(rank, world_size, batch))
    trainer.save_sharded(Path("kept"), model, optimizer, number)
    content = content_of(Path("kept"))  # complete on every rank
    saved = full_state(model)
    for batch in (3, 4):
        step(model, optimizer, *batch_of(rank, world_size, batch))
    return {"saved": saved, "after": full_state(model), "content": content}


def probe_loaded(rank, world_size, trainer, seed, content):
    """Load a checkpoint into a new model; return the step, the state, and what follows."""
    if rank == 0:
        restore(Path("kept"), content)
    dist.barrier()
    model, optimizer = made(trainer, seed)
    number = trainer.load_sharded("kept", model, optimizer)
    loaded = full_state(model)
    for batch in (3, 4):
        step(model, optimizer, *batch_of(rank, world_size, batch))
    return {"number": number, "loaded": loaded, "after": full_state(model)}


def check_loaded(saved, seen, number, world_size):
    """Compare a loaded checkpoint with what was saved, and the steps that follow."""
    before = len(saved)
    other = world_size != before
    lost = "checkpoint-not-resharded" if other else "state-lost"
    case = f"Saved on {before} ranks and loaded on {world_size}"
    check_that(
        all(value["number"] == number for value in seen),
        "state-lost",
        f"{case}: load_sharded returns {seen[0]['number']!r}, but step {number} was saved.",
    )
    wanted = saved[0]["saved"]
    wrong = [
        name
        for name in wanted
        if not all(close(value["loaded"].get(name), wanted[name], EXACT) for value in seen)
    ]
    check_that(
        not wrong,
        lost,
        f"{case}: {listed(wrong)} {'is' if len(wrong) == 1 else 'are'} not what was saved, bit for "
        "bit. Put the parts of the old ranks together, remove the padding, and cut for the new "
        "number of ranks. Save the buffers, too.",
        range(len(seen)),
    )
    wrong = [
        name
        for name in wanted
        if not all(close(value["after"][name], saved[0]["after"][name], 512) for value in seen)
    ]
    check_that(
        not wrong,
        lost,
        f"{case}: the parameters are right, but after two further steps, {listed(wrong)} differ "
        "from those of training without the interruption. The optimizer's state must be restored, "
        "cut like its parameters: both moments, and the number of steps.",
        range(len(seen)),
    )


@exercise("phase3/save_sharded", points=1.5)
def test_a_checkpoint_has_all_that_training_needs(ranks, rng):
    """Saved and loaded on the same ranks, parameters, buffers and the optimizer are the same."""
    number = int(rng.integers(3, 1000))

    def scattered(seen, _):
        failure = seen.failure
        if failure is None or failure.exception not in ("ValueError", "FileNotFoundError"):
            return None
        text = (
            "load_sharded can't load the checkpoint that save_sharded has written: "
            f"{failure.detail}. Before a checkpoint becomes the latest, every rank's file must be "
            "complete, and be where the others' files are."
        )
        return Diagnosis("not-atomic", failure.diagnosis.ranks, text, guide=GUIDE)

    saved = ranks(probe_saved, 2, seed=5, number=number)
    check_files(saved)
    seen = ranks(probe_loaded, 2, mistakes=[scattered], seed=6, content=saved[0]["content"])

    check_loaded(saved, seen, number, 2)


def check_files(saved):
    check_that(
        all(value["content"] for value in saved),
        "state-lost",
        "After save_sharded, there is no file in the folder.",
    )
    differ = [r for r, value in enumerate(saved) if value["content"] != saved[0]["content"]]
    check_that(
        not differ,
        "others-do-not-wait",
        f"When save_sharded returns on {ranks_text(differ)}, the files are not what they are on "
        "rank 0: a rank still writes. It must return only when the checkpoint is complete.",
        differ,
    )


@exercise("phase3/save_sharded", points=2.25)
def test_after_a_crash_at_any_moment_a_checkpoint_can_be_loaded(ranks):
    """Whenever all ranks are killed in a save, the previous or the new checkpoint is whole."""
    sharded_checkpoints.crash_leaves_a_checkpoint(ranks, [3, 4, 4])


def probe_late(rank, trainer):
    """Save, where rank 1 begins late and then rank 0 writes late; load at once after each save."""
    found = []
    for number in (1, 2):
        model, optimizer = made(trainer, number)
        pass_gate(f"late{number}", rank, 2, last=1)
        with late_writes(wait_for(f"late{number}", 1) if (rank, number) == (0, 2) else None):
            trainer.save_sharded("kept", model, optimizer, number)
        model, optimizer = made(trainer, 9) if number == 1 else (model, optimizer)
        found.append(trainer.load_sharded("kept", model, optimizer))
        pass_gate(f"done{number}", rank, 2, last=0)
    return found


@exercise("phase3/save_sharded", points=0.75)
def test_the_checkpoint_is_complete_when_save_returns(ranks):
    """Whichever rank is late: when save_sharded returns, the checkpoint can be loaded."""

    def incomplete(seen, _):
        failure = seen.failure
        if failure is None or failure.exception not in ("ValueError", "FileNotFoundError"):
            return None
        text = (
            "If a rank is late, the checkpoint can't be loaded when save_sharded has returned on "
            f"another: {failure.detail}. Return only when all ranks have written their files."
        )
        return Diagnosis("others-do-not-wait", failure.diagnosis.ranks, text, guide=GUIDE)

    seen = ranks(probe_late, 2, mistakes=[incomplete])

    check_that(
        all(list(value) == [1, 2] for value in seen),
        "others-do-not-wait",
        f"After saving steps 1 and 2, load_sharded returns {list(seen)} by rank. The latest "
        "checkpoint must be complete when save_sharded returns.",
    )


def probe_full_disk(rank, trainer, limit):
    """Save, then again on a disk that is full; return how that ended, and what loads."""
    model, optimizer = made(trainer, 1, WIDE)
    trainer.save_sharded("kept", model, optimizer, 1)
    first = full_state(model)
    dist.barrier()
    model, optimizer = made(trainer, 2, WIDE)
    limit_writes(limit)
    ended = outcome(lambda: trainer.save_sharded("kept", model, optimizer, 2) or 0, model)
    lift_limit()
    Path(f"over{rank}").touch()
    return [ended.get("error"), content_of(Path("kept")), first["first.weight"][0]]


def probe_after(rank, trainer, content):
    if rank == 0:
        restore(Path("kept"), content)
    dist.barrier()
    model, optimizer = made(trainer, 3, WIDE)
    found = outcome(lambda: trainer.load_sharded("kept", model, optimizer), model)
    return [
        found.get("step"),
        found.get("text"),
        found.get("state", {}).get("first.weight", [None])[0],
    ]


@exercise("phase3/save_sharded", points=0.75)
def test_a_full_disk_leaves_the_previous_checkpoint(ranks):
    """If no rank can write its file, save_sharded raises, and the previous checkpoint loads."""
    seen = ranks(probe_full_disk, 2, limit=50_000)
    quiet = [rank for rank, value in enumerate(seen) if value[0] is None]
    check_that(
        not quiet,
        "not-atomic",
        f"save_sharded could not write its files, as on a full disk, but raised nothing on "
        f"{ranks_text(quiet)}.",
        quiet,
    )

    after = ranks(probe_after, 2, content=seen[0][1])

    check_that(
        all(value[0] == 1 and close(value[2], seen[0][2], EXACT) for value in after),
        "not-atomic",
        "After a save that failed because the disk was full, the previous checkpoint can't be "
        f"loaded: {after[0][1] or 'its values are wrong'}.",
        range(2),
    )


def probe_sizes(rank, world_size, trainer):
    """Save a large model, where no rank may write more than its part; return the total."""
    model, optimizer = made(trainer, 1, WIDE)
    step(model, optimizer, *batch_of(rank, world_size, 1))
    whole = 3 * 4 * sum(value.numel() for value in full_state(model).values())
    limit_writes(whole // 2)
    trainer.save_sharded("kept", model, optimizer, 1)
    sizes = [len(data) for data in content_of(Path("kept")).values()]
    return [whole, sizes]


@exercise("phase3/save_sharded", points=0.75)
def test_each_rank_writes_its_own_part(ranks):
    """With 4 ranks, no file has more than half of the whole state, and all are there."""

    def too_large(seen, _):
        failure = seen.failure
        if failure is None or failure.status != "error":
            return None
        if not any(
            s in (failure.detail or "") for s in ("too large", "inline_container", "Stream")
        ):
            return None
        text = (
            f"{ranks_text(failure.diagnosis.ranks).capitalize()} wrote more than half of the whole "
            "state to one file. Each rank writes its own parts, of the optimizer's state too."
        )
        return Diagnosis("state-not-sharded", failure.diagnosis.ranks, text, guide=GUIDE)

    seen = ranks(probe_sizes, 4, mistakes=[too_large])

    whole, sizes = seen[0]
    large = [size for size in sizes if size > whole / 10]
    check_that(
        len(large) >= 2 and sum(sizes) >= 0.8 * whole,
        "state-lost",
        f"The files have {sum(sizes):,} bytes, but parameters and both moments need {whole:,}.",
    )
    check_that(
        sum(sizes) <= 1.9 * whole,
        "state-not-sharded",
        f"The files have {sum(sizes):,} bytes, but parameters and both moments need {whole:,}. "
        "Write each part once, not on every rank.",
    )


@exercise("phase3/load_sharded", points=3)
def test_another_number_of_ranks_loads_the_same(ranks, rng):
    """Saved on 3 ranks, loaded on 2, 4 and 1: all values are the same, bit for bit."""
    number = int(rng.integers(3, 1000))
    saved = ranks(probe_saved, 3, seed=5, number=number)
    check_files(saved)

    for world_size in (2, 4, 1):
        seen = ranks(probe_loaded, world_size, seed=6, content=saved[0]["content"])
        check_loaded(saved, seen, number, world_size)


def probe_two_sizes(rank, world_size, trainer, content, number):
    """Load a checkpoint of other ranks, save it twice again, and load that.

    The second save may use the names of the first ranks' files again.
    """
    if rank == 0:
        restore(Path("kept"), content)
    dist.barrier()
    model, optimizer = made(trainer, 6)
    trainer.load_sharded("kept", model, optimizer)
    for later in (number, number + 1):
        trainer.save_sharded("kept", model, optimizer, later)
    model, optimizer = made(trainer, 7)
    found = trainer.load_sharded("kept", model, optimizer)
    return {"found": found, "loaded": full_state(model)}


@exercise("phase3/load_sharded", points=0.75)
def test_a_folder_may_have_checkpoints_of_different_numbers_of_ranks(ranks):
    """Saved on 2 ranks, then twice by one in the same folder: the last one is loaded."""
    saved = ranks(probe_saved, 2, seed=5, number=10)
    check_files(saved)

    seen = ranks(probe_two_sizes, 1, content=saved[0]["content"], number=11)

    check_that(
        all(value["found"] == 12 for value in seen),
        "state-lost",
        f"After saving step 10 on 2 ranks and steps 11 and 12 on one, load_sharded returns "
        f"{seen[0]['found']}. Files of the former ranks must not be part of the latest checkpoint.",
    )
    assert_on_every_rank(
        each(seen, lambda value: value["loaded"]),
        saved[0]["saved"],
        mistakes=[_not_resharded],
        roundings=EXACT,
    )


def _not_resharded(seen, _expected):
    text = (
        "Saved on 2 ranks, loaded and saved by one in the same folder, and loaded again, the "
        "values are not the same. Which files belong to the latest checkpoint?"
    )
    return Diagnosis("checkpoint-not-resharded", tuple(range(len(seen))), text, guide=GUIDE)


def probe_damaged(rank, trainer, content, damage):
    """Load the checkpoint with each damage, and undamaged at the end; return if code ran, too."""
    model, optimizer = made(trainer, 6)
    found, ran = [], False
    for number, (name, data) in enumerate([*damage, (None, None)]):
        folder = Path(f"damage{number}", "kept")
        if rank == 0:
            restore(folder, content)
            if name is not None and data is None:
                (folder / name).unlink()
            elif name is not None:
                (folder / name).write_bytes(data)
        dist.barrier()
        with working_in(folder.parent):
            seen = outcome(lambda: trainer.load_sharded("kept", model, optimizer), model)
        ran = ran or Path(folder.parent, "ran").exists()
        dist.barrier()
        found.append(seen)
    return [found, ran]


def one_alone(seen, _):
    """Recognise that a rank raised while others wait for it in load_sharded."""
    if seen.failure is None or seen.failure.status not in ("deadlock", "timeout", "error"):
        return None
    diagnosis = seen.failure.diagnosis
    if diagnosis.code == "unfinished" or not diagnosis.code.startswith(("deadlock", "shape")):
        return None
    text = (
        "With a damaged or missing file, load_sharded raises on some ranks only, and the others "
        f"wait for them. Every rank must raise. {diagnosis.explanation}"
    )
    return Diagnosis("incomplete-accepted", diagnosis.ranks, text, diagnosis.where, GUIDE)


@exercise("phase3/load_sharded", points=1.5)
def test_missing_and_half_files_are_reported_on_every_rank(ranks):
    """If a file is missing or half, a ValueError or FileNotFoundError names it, on every rank."""
    saved = ranks(probe_saved, 2, seed=5, number=7)
    check_files(saved)
    content = saved[0]["content"]
    damage = [(name, None) for name in content]
    damage += [(n, d[: len(d) // 2]) for n, d in content.items() if isinstance(d, bytes)]

    seen = ranks(probe_damaged, 2, content=content, damage=damage, mistakes=[one_alone])

    for rank, (found, _) in enumerate(seen):
        check_that(
            found[-1].get("step") == 7,
            "state-lost",
            f"A complete checkpoint is not loaded: {found[-1].get('text')}.",
            [rank],
        )
        for (name, data), one in zip(damage, found, strict=False):
            what = "is missing" if data is None else "ends after half of its bytes"
            right = one.get("step") == 7 and close(one["state"], saved[0]["saved"], EXACT)
            check_that(
                "error" in one or right,
                "incomplete-accepted",
                f"{name} {what}, but load_sharded loads something else than was saved, without "
                "an error.",
                [rank],
            )
            check_that(
                "error" not in one or one["kind"],
                "incomplete-accepted",
                f"{name} {what}: load_sharded raises {one.get('error')}: {one.get('text')}. It "
                "must raise a ValueError or a FileNotFoundError.",
                [rank],
            )
            check_that(
                "error" not in one or Path(name).name in one["text"],
                "incomplete-accepted",
                f"{name} {what}, but the message does not name it: {one.get('text')}.",
                [rank],
            )
    nothing = ranks(probe_nothing, 2, mistakes=[one_alone])
    check_that(
        all(value in ("ValueError", "FileNotFoundError") for value in nothing),
        "incomplete-accepted",
        f"Without a checkpoint, load_sharded raises {nothing[0] or 'nothing'}. It must raise a "
        "ValueError or a FileNotFoundError.",
    )


def probe_nothing(trainer):
    model, optimizer = made(trainer, 6)
    return outcome(lambda: trainer.load_sharded("nowhere", model, optimizer), model).get("kind")


@exercise("phase3/load_sharded", points=0.75)
def test_code_in_a_file_is_not_run(ranks):
    """If a file of the checkpoint contains code, load_sharded raises and does not run it."""
    saved = ranks(probe_saved, 1, seed=5, number=7)
    check_files(saved)
    content = saved[0]["content"]
    bombs = files_with_code({"model": {}, "optimizer": {}, "step": 7})
    files = [name for name, data in content.items() if isinstance(data, bytes)]
    damage = [(name, bomb) for name in files for bomb in bombs]

    [[found, ran]] = ranks(probe_damaged, 1, content=content, damage=damage)

    check_that(
        found[-1].get("step") == 7,
        "state-lost",
        f"A checkpoint without code is not loaded: {found[-1].get('text')}.",
    )
    check_that(
        not ran,
        "unsafe-load",
        "A file of the checkpoint contained code, and load_sharded ran it. Load tensors and plain "
        "values only: `weights_only=True`.",
        [0],
    )
