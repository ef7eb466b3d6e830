"""The store through which ranks find each other."""

import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from gradsync.ranks.inside.rendezvous import RankStore


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "store")


def test_a_value_set_by_one_rank_is_read_by_another(path):
    RankStore(path, 2).set("address", "127.0.0.1")

    assert RankStore(path, 2).get("address") == b"127.0.0.1"


def test_get_waits_for_a_key(path):
    store = RankStore(path, 2)
    threading.Timer(0.1, lambda: RankStore(path, 2).set("late", "here")).start()

    assert store.get("late") == b"here"


def test_a_missing_key_is_named_at_the_time_limit(path):
    store = RankStore(path, 2)
    began = time.monotonic()

    with pytest.raises(dist.DistStoreError, match=r"rank 1 did not appear within 0:00:00\.1"):
        store.wait(["rank 1"], timedelta(seconds=0.1))
    assert time.monotonic() - began >= 0.1


def test_it_waits_for_the_groups_timeout(path):
    store = RankStore(path, 2)
    store.set_timeout(timedelta(milliseconds=50))

    with pytest.raises(dist.DistStoreError):
        store.get("never")


def test_it_has_the_methods_of_a_store(path):
    store = RankStore(path, 2)

    assert (store.add("count", 2), store.add("count", 3)) == (2, 5)
    assert store.compare_set("leader", "", "rank 0") == b"rank 0"
    assert store.compare_set("leader", "rank 1", "rank 2") == b"rank 0"
    assert (store.check(["leader"]), store.check(["leader", "follower"])) == (True, False)
    assert store.delete_key("leader")
    assert not store.check(["leader"])
    assert store.num_keys() >= 1
    assert store.clone().get("count") == b"5"
