"""On a rank, a module that was sent there is one module, as under spawn."""

import dataclasses
import io
import pickle
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader

from gradsync import RankFailure, run_ranks

SEEN = []
LATER = "loaded from the file when it is used"


@dataclasses.dataclass
class Metrics:
    loss: float


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index**2


def remember(value):
    SEEN.append(value)


def twice(index, results):
    results[index] = 2 * index


@pytest.mark.parametrize("launcher", ["fork", "spawn"])
def test_ranks_exchange_objects_of_a_class_of_the_test_module(launcher):
    def gather(world_size, rank):
        found = [None] * world_size
        dist.all_gather_object(found, Metrics(1.0 + rank))
        return sum(metrics.loss for metrics in found)

    assert list(run_ranks(gather, 2, launcher=launcher)) == [3.0, 3.0]


def test_a_rank_saves_an_object_of_a_class_of_the_test_module():
    def save():
        file = io.BytesIO()
        torch.save(Metrics(2.0), file)
        return torch.load(io.BytesIO(file.getvalue()), weights_only=False) == Metrics(2.0)

    assert run_ranks(save, 1)[0]


def test_functions_that_are_inputs_share_their_globals_with_the_test():
    def use(act):
        act("a")
        remember("b")
        return SEEN, remember is sys.modules[__name__].remember

    assert run_ranks(use, 1, act=remember)[0] == (["a", "b"], True)


def test_other_names_of_the_module_are_loaded_into_the_same_module():
    def use():
        remember("before")
        module = sys.modules[__name__]
        return module.LATER, module.SEEN is SEEN, module.remember is remember

    assert run_ranks(use, 1)[0] == (LATER, True, True)


def test_what_the_main_program_does_not_send_says_so(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from gradsync import RankFailure, run_ranks\n"
        "OTHER = 1\n"
        "def use(): return sys.modules['__main__'].OTHER\n"
        "if __name__ == '__main__': run_ranks(use, 1)\n"
    )

    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)

    assert "only what the function uses is sent to the ranks" in done.stderr


@pytest.mark.slow
def test_spawned_processes_of_a_rank_find_its_functions_and_classes():
    def spawn():
        results = mp.get_context("spawn").Manager().list([None, None])
        mp.spawn(twice, args=(results,), nprocs=2)
        loader = DataLoader(Squares(), num_workers=1, multiprocessing_context="spawn")
        return list(results), [int(square) for square in loader]

    assert run_ranks(spawn, 1)[0] == ([0, 2], [0, 1, 4, 9])


def test_a_rank_waits_for_its_threads_before_it_ends():
    def leave(rank):
        def work():
            time.sleep(0.1)
            for _ in range(20):
                dist.all_reduce(torch.ones(1))

        thread = threading.Thread(target=work)
        thread.start()
        if rank == 0:
            thread.join()
        return rank

    assert list(run_ranks(leave, 2)) == [0, 1]


def test_a_thread_that_never_ends_is_named():
    def leave():
        threading.Thread(target=time.sleep, args=[60], name="heartbeat").start()

    with pytest.raises(RankFailure, match="Rank 0 returned, but the thread heartbeat does not end"):
        run_ranks(leave, 1, timeout=1)


def test_pickle_finds_the_definitions_of_a_rank_by_their_names():
    def names():
        return [pickle.loads(pickle.dumps(each)) is each for each in (Metrics, remember)]

    assert run_ranks(names, 1)[0] == [True, True]
