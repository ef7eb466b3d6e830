"""Visible tests of a training run that loses a rank."""

import numpy as np

from gradsync.testing import exercise, raise_mistake
from support.probes.lost_ranks import EPOCHS, STEPS, probe_again, probe_fault
from support.probes.training import draw_samples
from support.rules.lost_ranks import ended_wrongly, hangs, resumed_after_loss_wrongly
from support.rules.resuming import file_missing

RANKS, LOST, AT = 2, 1, STEPS + 2  # rank 1 is lost before the third step of the second epoch
LIMIT = 72  # seconds: the other ranks must end within 60


def inputs():
    rng = np.random.default_rng(1)
    data = [draw_samples(rng, RANKS * STEPS), draw_samples(rng, 4)]
    return {"data": data, "at": AT, "lost": LOST}


def lose(ranks, *, late):
    """Train until rank 1 is lost."""
    options = {"may_fail": [LOST], "timeout": LIMIT, "promised": True}
    options["mistakes"] = [hangs(LOST, late=late)]
    return ranks(probe_fault, RANKS, process_group=False, **options, **inputs(), late=late)


@exercise("phase2/train", points=1)
def test_if_a_rank_is_killed_the_other_ends_with_an_error(ranks):
    """Rank 1 of 2 is killed in the second epoch: rank 0 ends with an error, and leaves a file.

    A new run that resumes from this file ends like a run in which no rank was killed.
    """
    seen = lose(ranks, late=False)

    raise_mistake(ended_wrongly(seen, LOST, late=False))
    content = seen[0]["content"]
    raise_mistake(file_missing(bool(content)))
    again = ranks(probe_again, RANKS, data=inputs()["data"], content=content, pause=0.0)
    raise_mistake(resumed_after_loss_wrongly(again, AT, STEPS, EPOCHS))


@exercise("phase2/train", points=1)
def test_if_a_rank_is_late_all_end_with_an_error(ranks):
    """Rank 1 is later than the group's timeout, here 0.2 s: both ranks end with an error."""
    seen = lose(ranks, late=True)

    raise_mistake(ended_wrongly(seen, LOST, late=True))
