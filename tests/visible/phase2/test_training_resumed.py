"""Visible tests of training that is interrupted, and of its file."""

import numpy as np

from gradsync.testing import exercise, raise_mistake, seen_of
from support.probes.files import files_with_code
from support.probes.resuming import probe_called_again, probe_interrupted, probe_resumed
from support.probes.training import draw_samples
from support.probes.training_files import probe_code_in_file, probe_failed_write, probe_writing
from support.rules.checkpoints import writes_too
from support.rules.resuming import (
    GUIDE,
    code_run,
    file_harmed,
    file_missing,
    file_misused,
    file_not_updated,
    interrupted_wrongly,
    ranks_resume_apart,
    repeated_epochs,
    resumed_elsewhere_wrongly,
    samples_to_resume,
)


def data_of(samples):
    """Return training samples and 4 validation samples, with 4 numbers each."""
    rng = np.random.default_rng(1)
    return [draw_samples(rng, samples), draw_samples(rng, 4)]


@exercise("phase2/train", points=1)
def test_only_rank_0_writes_and_at_least_once_an_epoch(ranks):
    """In 4 epochs the file changes before the last one, and rank 1 writes none."""
    seen = ranks(probe_writing, world_size=2, mistakes=[writes_too(GUIDE), file_misused])

    raise_mistake(file_not_updated(*seen[0]))


@exercise("phase2/train", points=1)
def test_an_interrupted_training_ends_like_one_without_interruption(ranks):
    """Two ranks with 11 samples each stop at step 22 of 33, and are called again with the file.

    They end with the weights, the buffers and the history of a run that was never interrupted.
    """
    given = {"data": data_of(22), "epochs": 3, "stop_at": 21}

    def without():
        return seen_of(lambda: ranks(probe_interrupted, world_size=2, resumed=False, **given))

    mistakes = [file_misused, ranks_resume_apart(without)]
    seen = ranks(probe_interrupted, world_size=2, mistakes=mistakes, **given)

    raise_mistake(interrupted_wrongly(seen, share=11, epochs=3))


@exercise("phase2/train", points=1)
def test_it_resumes_with_another_number_of_ranks(ranks):
    """After 2 ranks were interrupted in mid-epoch, 3 ranks use the rest of the 72 samples."""
    options = {"data": data_of(72), "batch_size": 3}
    until = {"stop_at": 36 + 27, "epochs": 2, "undisturbed": False}
    before = ranks(probe_interrupted, world_size=2, **options, **until)
    raise_mistake(file_missing(all(value["content"] for value in before)))
    epoch, done = samples_to_resume(before, 36, epochs=2)

    content = before[0]["content"]
    seen = ranks(probe_resumed, world_size=3, **options, content=content, epochs=2)

    place = {"samples": 72, "epoch": epoch, "done": done}
    raise_mistake(resumed_elsewhere_wrongly(seen, **place, before=2, epochs=2))


@exercise("phase2/train", points=1)
def test_finished_epochs_are_not_repeated(ranks):
    """Called with 1 epoch twice and then with 2, train uses each epoch's samples once."""
    given = {"data": data_of(8), "batch_size": 2}

    seen = ranks(probe_called_again, world_size=2, calls=[1, 1, 2, 2], **given)

    raise_mistake(repeated_epochs(seen[0]))


@exercise("phase2/train", points=1)
def test_a_failed_write_keeps_the_old_file(ranks):
    """If the disk is full, the file of the epoch before stays complete."""
    [seen] = ranks(probe_failed_write, world_size=1, mistakes=[file_misused])

    raise_mistake(file_harmed(*seen))


@exercise("phase2/train", points=1)
def test_code_in_the_file_is_not_run(ranks):
    """A file that would run code when it is unpickled is refused, or read without running it."""
    files = files_with_code({"model": {}, "epoch": 1})

    given = {"files": files, "mistakes": [file_misused]}
    [seen] = ranks(probe_code_in_file, world_size=1, **given)

    raise_mistake(code_run(*seen))
