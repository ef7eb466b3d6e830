"""Saving and loading checkpoints: only rank 0 writes, every rank reads, no code is run."""

from gradsync.testing import exercise
from support.promises import checkpoints


@exercise("phase1/save_checkpoint", points=1.5)
def test_only_rank_0_writes(ranks):
    """Only rank 0 writes to the disk."""
    checkpoints.only_rank_0_writes(ranks, world_size=3)


@exercise("phase1/save_checkpoint", points=1.5)
def test_the_file_exists_on_every_rank_when_save_checkpoint_returns(ranks):
    """When save_checkpoint returns, the new file is there on every rank, even if rank 0 is late."""
    checkpoints.file_there_on_every_rank(ranks, world_size=3)


@exercise("phase1/save_checkpoint", points=2)
def test_a_crash_during_a_save_keeps_the_former_file(ranks):
    """If the disk is full in the middle of a save, the previous checkpoint is still complete.

    Then no rank returns as if the new file existed.
    """
    checkpoints.former_file_survives_crash(ranks)
    checkpoints.failed_save_reported(ranks)


@exercise("phase1/load_checkpoint", points=1.5)
def test_loading_restores_everything_that_was_saved(ranks):
    """Loading restores the parameters, the buffers, the optimizer's state and the epoch."""
    checkpoints.everything_restored(ranks)


@exercise("phase1/load_checkpoint", points=0.5)
def test_loading_works_on_a_single_rank(ranks, rng):
    """Loading works on a single rank, without a process group."""
    checkpoints.loads_on_a_single_rank(ranks, epoch=int(rng.integers(8, 1000)))


@exercise("phase1/load_checkpoint", points=1)
def test_code_in_a_checkpoint_is_not_run(ranks):
    """Loading a checkpoint that contains code raises an error and does not run the code."""
    checkpoints.no_code_run(ranks)
