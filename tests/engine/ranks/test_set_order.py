"""Sets have another order on other ranks, as in processes that torchrun starts."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gradsync import run_ranks

NAMES = ("weight", "bias", "scale")


def averages_a_set(rank):
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    model(torch.ones(1, 2)).sum().backward()
    for parameter in set(model.parameters()):
        dist.all_reduce(parameter.grad)


def set_of_strings(rank):
    return "-".join(set(NAMES))


def test_an_order_of_addresses_is_found_on_every_run(failure_of):
    for _ in range(2):
        failure = failure_of(averages_a_set, 2)

        assert failure.diagnosis.code == "deadlock-order-differs"


@pytest.mark.parametrize("count", [2, 3, 5])
def test_sets_of_tensors_have_another_order_on_the_next_rank(count):
    def order(rank):
        places = {torch.ones(1): place for place in range(count)}
        return [places[item] for item in set(places)]

    even, odd = run_ranks(order, 2)

    assert even != odd


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["hashes", "spawn"])
def test_strings_have_other_hashes_the_same_on_every_run(launcher, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)

    orders = [list(run_ranks(set_of_strings, 4, launcher=launcher)) for _ in range(2)]

    assert len(set(orders[0])) > 1
    assert orders[0] == orders[1]


@pytest.mark.slow
def test_ranks_of_several_warm_processes_are_numbered_and_explained(failure_of):
    def skip(rank):
        if rank != 4:
            dist.barrier()

    failure = failure_of(skip, 5, launcher="hashes")

    assert failure.diagnosis.ranks == (4,)
    assert failure.waiting == (0, 1, 2, 3)
