"""torch's own analyser reads gradsync's dumps: it finds no mismatch, or the missing rank."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from gradsync import RankFailure, run_ranks
from gradsync.ranks.flight_recorder import write_flight_records


def analysed(observation, folder):
    """Return the output of `torchfrtrace` for a run."""
    write_flight_records(observation, folder)
    analyser = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder)]
    done = subprocess.run(analyser, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def test_a_run_without_mistakes_has_no_mismatch(tmp_path):
    def run(rank):
        dist.all_reduce(torch.ones(3))
        dist.broadcast(torch.ones(2), 1)
        if rank == 0:
            dist.send(torch.ones(1), 1)
        elif rank == 1:
            dist.recv(torch.ones(1), 0)
        pair = dist.new_group([0, 2])
        if rank != 1:
            dist.all_reduce(torch.ones(4), group=pair)
        dist.all_gather([torch.zeros(2, 2) for _ in range(3)], torch.ones(2, 2))
        dist.reduce_scatter(torch.zeros(2), [torch.ones(2)] * 3)
        dist.gather(torch.ones(2), [torch.zeros(2)] * 3 if rank == 0 else None, dst=0)
        dist.all_to_all_single(torch.zeros(3), torch.ones(3))
        dist.barrier()

    text = analysed(run_ranks(run, 3), tmp_path / "dumps")

    assert "Not all ranks joining" not in text
    assert "Culprit" not in text
    assert "error" not in text.replace("No errors found", "")


def test_the_missing_rank_and_the_line_are_found(tmp_path):
    def skip(rank):
        dist.all_reduce(torch.ones(3))
        if rank != 1:
            dist.all_reduce(torch.ones(5))  # here

    with pytest.raises(RankFailure) as failure:
        run_ranks(skip, 3)
    text = analysed(failure.value.observation, tmp_path)

    assert "Not all ranks joining collective, sequence number: 2" in text
    assert "missing ranks: {1}" in text
    assert "skip at test_flight_recorder.py:" in text


def test_different_shapes_are_a_mismatch_of_sizes(tmp_path):
    def differ(rank):
        dist.all_reduce(torch.ones(3 + rank))

    with pytest.raises(RankFailure) as failure:
        run_ranks(differ, 2)

    assert "SIZE_OR_SYNTAX_MISMATCH" in analysed(failure.value.observation, tmp_path)
