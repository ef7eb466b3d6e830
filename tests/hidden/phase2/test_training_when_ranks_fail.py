"""Training in which a rank dies or is late: how it ends, and whether it can be resumed."""

from gradsync.testing import exercise, raise_mistake
from support.probes.lost_ranks import EPOCHS, GROUP_LIMIT, STEPS, probe_again, probe_fault
from support.probes.training import TIME_TO_END, draw_samples
from support.rules.lost_ranks import ended_wrongly, hangs, resumed_after_loss_wrongly
from support.rules.resuming import file_missing

RANKS = 3
LIMIT = 2 * TIME_TO_END + 3 * GROUP_LIMIT  # seconds for a run: a late rank ends after the others


def draw(rng, first=0):
    """Return the inputs of a run that loses a rank (at least `first`) in its last epoch."""
    data = [draw_samples(rng, RANKS * STEPS), draw_samples(rng, 5)]
    at = int(rng.integers(STEPS + 1, EPOCHS * STEPS))
    return {"data": data, "at": at, "lost": int(rng.integers(first, RANKS))}


@exercise("phase2/train", points=1.5)
def test_after_a_rank_is_killed_training_ends_and_can_be_resumed(ranks, rng):
    """If a rank is killed, the others end with an error, and a new run resumes correctly."""
    inputs = draw(rng, first=1)  # if rank 0 is killed while it writes, the file may be damaged

    check_loss(ranks, inputs, late=False)


@exercise("phase2/train", points=1.5)
def test_a_rank_that_is_seconds_late_ends_training_and_a_short_delay_does_not(ranks, rng):
    """If a rank is later than the timeout, all end with an error; a short delay is accepted."""
    check_loss(ranks, draw(rng), late=True, pause=0.15)


def check_loss(ranks, inputs, *, late, pause=0.0):
    """Train until a rank is lost, then check how the others end, and resume."""
    lost, at, data = inputs["lost"], inputs["at"], inputs["data"]
    limit = LIMIT if late else LIMIT - TIME_TO_END
    options = {"may_fail": [lost], "timeout": limit, "promised": True}
    options["mistakes"] = [hangs(lost, late=late)]
    seen = ranks(probe_fault, RANKS, process_group=False, **options, **inputs, late=late)

    raise_mistake(ended_wrongly(seen, lost, late=late))
    content = seen[seen.answered[0]]["content"]
    raise_mistake(file_missing(bool(content)))
    again = ranks(probe_again, RANKS, data=data, content=content, pause=pause)
    raise_mistake(resumed_after_loss_wrongly(again, at, STEPS, EPOCHS))
