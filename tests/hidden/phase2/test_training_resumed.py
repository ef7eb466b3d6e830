"""Training that is interrupted and resumed from its file."""

import pytest

from gradsync.testing import exercise, raise_mistake
from support.probes.resuming import probe_called_again, probe_interrupted, probe_resumed
from support.probes.training import TIME_TO_END, draw_samples
from support.rules.resuming import (
    file_missing,
    file_misused,
    interrupted_wrongly,
    repeated_epochs,
    resumed_elsewhere_wrongly,
    samples_to_resume,
)

# Samples of a rank, in batches of one: a run that saves every 20 steps resumes in mid-epoch.
SHARE, EPOCHS = 11, 3  # without padding, which is not the same for the rest of an epoch
# For a run in which train raises: it may search for lost ranks.
LIMIT = {"timeout": 20 + TIME_TO_END, "promised": True}


def draw(rng, samples):
    """Return training samples and validation samples."""
    return [draw_samples(rng, samples), draw_samples(rng, 5)]


@pytest.mark.parametrize("world_size", [2, 1])
@exercise("phase2/train", points=1.5)
def test_an_interrupted_training_ends_like_one_without_interruption(ranks, rng, world_size):
    """A run that is interrupted and resumed ends with the same weights, with momentum too."""
    options = {"data": draw(rng, SHARE * world_size), "epochs": EPOCHS}
    options["mistakes"] = [file_misused]

    seen = ranks(probe_interrupted, world_size, **options, stop_at=2 * SHARE - 1, **LIMIT)

    raise_mistake(interrupted_wrongly(seen, share=SHARE, epochs=EPOCHS))


@exercise("phase2/train", points=0.75)
def test_it_resumes_with_another_number_of_ranks(ranks, rng):
    """With more or fewer ranks than before, all remaining samples of the epoch are used."""
    samples, share = 72, 36  # steps of 2 ranks, after which the rest seldom divides by 3 ranks
    options = {"data": draw(rng, samples), "batch_size": 3}
    until = {"stop_at": share + 27, "epochs": 2, "undisturbed": False}
    before = ranks(probe_interrupted, 2, **options, **until, **LIMIT)
    raise_mistake(file_missing(all(value["content"] for value in before)))
    epoch, done = samples_to_resume(before, share, epochs=2)

    options["content"] = before[0]["content"]
    for world_size, epochs in ((3, 3), (1, 2)):
        seen = ranks(probe_resumed, world_size, **options, epochs=epochs)

        place = {"samples": samples, "epoch": epoch, "done": done}
        raise_mistake(resumed_elsewhere_wrongly(seen, **place, before=2, epochs=epochs))


@exercise("phase2/train", points=0.5)
def test_finished_epochs_are_not_repeated(ranks, rng):
    """A second call trains only the epochs that are not done, or none if all are done."""
    given = {"data": draw(rng, 24), "batch_size": 6}

    seen = ranks(probe_called_again, 2, calls=[1, 1, 2, 2], **given)

    raise_mistake(repeated_epochs(seen[0]))
