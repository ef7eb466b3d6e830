"""The device and the backends of a rank in phase 2."""

import pytest
import torch
import torch.distributed as dist

from support.training import device_and_backend


@pytest.fixture
def gpus(monkeypatch):
    """Make torch report this many GPUs, and nccl; the tests don't use them."""

    def fake(count, nccl=True):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)

    return fake


def test_a_rank_trains_on_the_gpu_of_its_local_rank(gpus):
    gpus(4)

    assert device_and_backend(3) == (torch.device("cuda", 3), "cpu:gloo,cuda:nccl")


def test_without_gpus_or_nccl_a_rank_trains_on_the_cpu(gpus):
    for count, nccl in ((0, True), (2, False)):
        gpus(count, nccl)

        assert device_and_backend(0) == (torch.device("cpu"), "gloo")


def test_with_nccl_on_gpus_tensors_on_the_cpu_are_sent_over_gloo():

    config = dist.distributed_c10d.BackendConfig(dist.Backend("cpu:gloo,cuda:nccl"))

    assert config.get_device_backend_map() == {"cpu": "gloo", "cuda": "nccl"}
