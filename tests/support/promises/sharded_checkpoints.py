"""What checkpoints in shards promise: whenever the ranks crash, one of them is complete."""

from functools import partial
from pathlib import Path

import torch.distributed as dist

from gradsync.records import Diagnosis
from gradsync.testing import EXACT, check
from gradsync.testing.values import close
from support.probes.late_rank import pass_gate
from support.probes.sharded import full_state
from support.probes.sharded_files import made, outcome, snapshots, working_in

GUIDE = "Checkpoints in shards"
check_that = partial(check, guide=GUIDE)


def crash_leaves_a_checkpoint(ranks, steps):
    """Check that whenever all of 2 ranks are killed in a save, a checkpoint can be loaded.

    There is a save for each of the steps. In turn, rank 1 and rank 0 is late.
    """

    def probe(rank, trainer, steps):
        Path("copies").mkdir(exist_ok=True)
        states, ranges = [], []
        for number, saved_step in enumerate(steps):
            model, optimizer = made(trainer, number)
            states.append(full_state(model))
            place = Path("copies", str(number))
            place.mkdir(exist_ok=True)
            dist.barrier()
            if number:
                pass_gate(f"gate{number}", rank, 2, last=number % 2)
            with snapshots(Path("kept"), place, rank):
                trainer.save_sharded("kept", model, optimizer, saved_step)
            dist.barrier()
            ranges.append(sorted(p.name for p in place.iterdir() if p.is_dir()))
        found = []
        model, optimizer = made(trainer, 8)
        for number, names in enumerate(ranges[1:], 1):
            for name in names:
                with working_in(Path("copies", str(number), name)):
                    seen = outcome(lambda: trainer.load_sharded("kept", model, optimizer), model)
                found.append([number, seen])
        return {"states": states, "found": found}

    seen = ranks(probe, 2, mistakes=[_others_raise], steps=steps)

    states = seen[0]["states"]
    check_that(
        len({len(value["found"]) for value in seen}) == 1 and seen[0]["found"],
        "state-lost",
        "save_sharded writes no files.",
    )
    for rank, value in enumerate(seen):
        for number, found in value["found"]:
            case = (
                f"The ranks crash during save number {number + 1} "
                f"(step {steps[number]} over step {steps[number - 1]})"
            )
            check_that(
                "error" not in found,
                "not-atomic",
                f"{case}: load_sharded raises {found.get('error')}: {found.get('text')}. The "
                "previous checkpoint must stay as it is until every rank's new file is complete.",
                [rank],
            )
            check_that(
                any(close(found["state"], states[n], EXACT) for n in (number - 1, number)),
                "not-atomic",
                f"{case}: load_sharded loads parts of two checkpoints. New files must not replace "
                "those of the previous checkpoint one by one.",
                [rank],
            )


def _others_raise(seen, _):
    """Recognise that after a crash, some ranks load and others raise."""
    if seen.failure is None or seen.failure.status not in ("deadlock", "timeout"):
        return None
    diagnosis = seen.failure.diagnosis
    if "load_sharded" not in str(seen.failure.collective and seen.failure.collective.callers):
        return None
    text = (
        "After a crash in the middle of save_sharded, some ranks can load the checkpoint, but "
        f"others raise: it is not whole. {diagnosis.explanation}"
    )
    return Diagnosis("not-atomic", diagnosis.ranks, text, diagnosis.where, GUIDE)
