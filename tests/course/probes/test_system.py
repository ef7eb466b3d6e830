"""Reports of the probes on files, connections and GPUs of a rank."""

import importlib
import socket
import sys
from pathlib import Path

import pytest

from gradsync.ranks import run_ranks
from support.probes.files import file_changes, lift_limit, limit_writes
from support.probes.gpus import taken_among_gpus
from support.probes.launching import connected_to


@pytest.fixture
def on_a_rank(tmp_path, monkeypatch):
    """Return a function that runs a probe on a rank, in an empty folder, and returns its value."""
    monkeypatch.chdir(tmp_path)
    return lambda probe: run_ranks(probe, 1, process_group=False)[0]


def test_changes_of_files_are_recorded(on_a_rank):
    def probe():
        Path("there").write_text("previous")
        changes = file_changes()
        Path("new").write_text("new")
        Path("there").read_text()
        Path("new").replace("there")
        Path("there").rename("away")
        Path("away").unlink()
        Path("mark").touch()
        Path("folder").mkdir()
        Path("mark").rename("folder/mark")
        Path("folder/mark").rename("mark")
        return [[done, path.name] for done, path in changes if Path.cwd() in path.parents]

    assert on_a_rank(probe) == [
        ["emptied", "new"],
        ["renamed", "new"],
        ["renamed", "there"],
        ["removed", "away"],
        ["made", "mark"],
        ["renamed", "mark"],
        ["brought", "mark"],
        ["renamed", "mark"],
    ]


def test_the_write_limit_can_be_lifted(on_a_rank):
    def probe():
        limit_writes(10)
        with pytest.raises(OSError, match="too large"):
            Path("there").write_bytes(bytes(20))
        lift_limit()
        return Path("there").write_bytes(bytes(20))

    assert on_a_rank(probe) == 20


@pytest.mark.parametrize("address", ["127.0.0.2", "127.0.0.1"])
def test_a_connection_is_listed_for_the_side_that_opened_it(address):
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        assert connected_to(port) == []
        with socket.create_connection((address, port)):
            assert connected_to(port) == [address]


GPU_SETUPS = {  # a learner's code -> [pinned, backends, returned]
    "return torch.device('cuda', torch.cuda.current_device())": [[], [], ["cuda:0"]],
    "torch.cuda.set_device(device=2); return torch.device('cuda')": [["cuda:2"], [], ["cuda"]],
    "torch.cuda.set_device('cuda:5'); torch.zeros(1, device='cuda')": [["cuda:5"], [], None],
    "os.environ['CUDA_VISIBLE_DEVICES'] = '4'; return torch.device('cuda:0')": [[], [], None],
    "return torch.device('cuda' if AT_IMPORT else 'cpu', info[0])": [[], [], ["cuda:3"]],
    "meet('nccl', **ALONE); dist.barrier(device_ids=[3])": [[], ["nccl"], None],
    "meet(device_id=torch.device('cuda:3'), **ALONE)": [["cuda:3"], [""], None],
    "meet('nccl', **ALONE); return torch.device(dist.get_backend() == 'nccl' and 'cuda:1')": [
        [],
        ["nccl"],
        ["cuda:1"],
    ],
}
LEARNER = """
import os
import torch
import torch.distributed as dist
from torch.distributed import init_process_group as meet
AT_IMPORT = torch.accelerator.is_available() and dist.is_nccl_available()
ALONE = {{"store": dist.HashStore(), "rank": 0, "world_size": 1}}
RankInfo = lambda *fields: fields
def setup_distributed(info):
    {body}
"""


@pytest.mark.parametrize("body", GPU_SETUPS)
def test_the_gpu_and_the_backend_of_a_setup_are_reported(on_a_rank, body):
    def probe():
        Path("learner.py").write_text(LEARNER.format(body=body))
        sys.path.insert(0, str(Path.cwd()))
        taken = taken_among_gpus(importlib.import_module("learner"), 3)
        return [taken["pinned"], taken["backends"], taken["returned"]]

    assert on_a_rank(probe) == GPU_SETUPS[body]
