"""The reference trainer names a lost rank, the same one on every surviving rank."""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gradsync import run_ranks

PHASE = Path(__file__).parents[3] / "solutions" / "phase2"


def name_the_lost(grace=1.5):
    """Call a collective; return the error that names the missing rank."""
    sys.path.insert(0, str(PHASE))
    import template_trainer

    template_trainer.GRACE_SECONDS = grace
    try:
        with template_trainer._naming_lost_ranks():
            dist.all_reduce(torch.ones(1000))
    except RuntimeError as error:
        return str(error)
    return "all came"


@pytest.mark.parametrize(("world_size", "lost"), [(2, 1), (3, 0), (5, 2)])
def test_every_survivor_names_the_rank_that_was_killed_and_no_other(world_size, lost):
    def function(rank):
        if rank == lost:
            os.kill(os.getpid(), signal.SIGKILL)
        return name_the_lost()

    seen = run_ranks(function, world_size, may_fail=[lost])

    assert len(seen.answered) == world_size - 1
    assert all(seen[rank].startswith(f"lost rank {lost} (") for rank in seen.answered)


@pytest.mark.parametrize("patient", [None, 3])
def test_every_other_rank_names_the_late_one(tmp_path, patient):
    """A rank with a long timeout notices the loss when others close their connections."""

    def function(rank):
        limit = timedelta(seconds=60.0 if rank == patient else 0.5)
        dist.distributed_c10d._set_pg_timeout(limit)
        while rank == 1 and len(list(tmp_path.iterdir())) < 3:
            time.sleep(0.01)
        said = name_the_lost()
        (tmp_path / str(rank)).touch()
        return said

    seen = run_ranks(function, 4, may_fail=[1])

    others = [seen[rank].split(" (")[0] for rank in (0, 2, 3)]
    assert others == ["lost rank 1"] * 3
    assert "lost rank" not in seen[1]
    assert seen[1] != "all came"


def test_other_errors_are_not_changed():
    def function(rank):
        sys.path.insert(0, str(PHASE))
        import template_trainer

        try:
            with template_trainer._naming_lost_ranks():
                raise RuntimeError("shapes do not fit")
        except RuntimeError as error:
            return str(error)

    assert list(run_ranks(function, 2)) == ["shapes do not fit"] * 2
