"""What probes see of files, connections and GPUs, on a rank of their own."""

import os
import socket
from pathlib import Path

import pytest
import torch

from gradsync.probes.files import file_changes, lift_limit, limit_writes
from gradsync.probes.launching import connected_to, devices_named
from gradsync.ranks import run_ranks


@pytest.fixture
def on_a_rank(tmp_path, monkeypatch):
    """Call it with a function for what a rank returns that runs it in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda probe: run_ranks(probe, 1, process_group=False)[0]


def test_what_is_done_to_a_file_is_noted_and_no_more(on_a_rank):
    def probe():
        Path("there").write_text("former")
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


def test_a_disk_that_was_full_can_be_written_again(on_a_rank):
    def probe():
        limit_writes(10)
        with pytest.raises(OSError, match="too large"):
            Path("there").write_bytes(bytes(20))
        lift_limit()
        return Path("there").write_bytes(bytes(20))

    assert on_a_rank(probe) == 20


@pytest.mark.parametrize("address", ["127.0.0.2", "127.0.0.1"])
def test_a_connection_is_seen_from_the_side_that_made_it(address):
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        assert connected_to(port) == []
        with socket.create_connection((address, port)):
            assert connected_to(port) == [address]


def test_devices_are_those_that_are_set_or_returned(on_a_rank):
    def probe():
        def pinned():
            torch.cuda.set_device(2)
            return torch.device("cuda", torch.cuda.device_count() - 1)

        def fails():
            torch.cuda.set_device("cuda:5")
            torch.zeros(1, device="cuda")

        def hidden():
            os.environ["CUDA_VISIBLE_DEVICES"] = "4"
            return torch.device("cuda:0")

        return [devices_named(setup) for setup in (pinned, fails, hidden)]

    assert on_a_rank(probe) == [["cuda:2", "cuda:7"], ["cuda:5"], []]
