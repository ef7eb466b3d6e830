"""torch's compiler is imported only when it is used, and is then complete."""

import importlib
import inspect
import subprocess
import sys
import threading

import pytest
import torch
import torch.distributed as dist

from gradsync import run_ranks

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs the fork launcher"),
    pytest.mark.usefixtures("afresh"),
]
PART = "torch._dynamo.eval_frame"  # a module that it imports


def train_a_step():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 3)).sum().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
    optimizer.zero_grad()


def has_run():
    return PART in sys.modules


def test_training_does_not_import_it():
    def function():
        train_a_step()
        inspect.getmodule(train_a_step)  # this searches all imported modules
        torch.manual_seed(1)
        return has_run()

    assert list(run_ranks(function, 2)) == [False, False]


@pytest.mark.slow
def test_it_compiles_what_it_is_given():
    def function():
        train_a_step()
        double = torch.compile(lambda x: x * 2, backend="eager")
        doubled = double(torch.ones(3))
        train_a_step()  # uses the compiler's version of the optimizer's methods
        return [doubled, has_run(), torch._dynamo is sys.modules["torch._dynamo"]]

    doubled, ran, same = run_ranks(function, 1)[0]

    assert doubled.tolist() == [2.0, 2.0, 2.0]
    assert ran
    assert same


@pytest.mark.slow
def test_functions_are_disabled_once_it_has_run():
    def function():
        train_a_step()
        compiler = sys.modules["torch._dynamo"]
        before = compiler.disable
        torch._dynamo.reset()
        model = torch.nn.Linear(3, 2)
        torch.optim.SGD(model.parameters()).zero_grad()
        inner = inspect.unwrap(torch.optim.Optimizer.zero_grad)
        made = vars(inner)["__dynamo_disable"]
        return [before is not compiler.disable, made is not inner]

    assert run_ranks(function, 1)[0] == [True, True]


@pytest.mark.slow
def test_a_submodule_is_imported_once_and_an_unknown_one_is_missing():
    def function():
        from torch._dynamo.utils import is_compile_supported

        part = sys.modules["torch._dynamo.utils"]
        try:
            importlib.import_module("torch._dynamo.nowhere")
            reported = ""
        except ModuleNotFoundError as error:
            reported = str(error)
        return [
            is_compile_supported is part.is_compile_supported,
            sys.modules["torch._dynamo"].utils is part,
            part.__spec__.loader.__class__.__name__,
            reported,
            hasattr(sys.modules["torch._dynamo"], "nothing"),
        ]

    same, one, loader, reported, has_it = run_ranks(function, 1)[0]

    assert same
    assert one
    assert loader == "SourceFileLoader"
    assert "torch._dynamo.nowhere" in reported
    assert not has_it


@pytest.mark.slow
def test_threads_that_import_it_at_the_same_time_all_get_it():
    def function():
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(torch._dynamo.optimize.__name__))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    assert run_ranks(function, 1)[0] == ["optimize"] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [PART, pytest.param("torch.distributed.optim", marks=pytest.mark.slow)]
)
def test_imports_of_one_run_are_available_in_the_next(name):
    def function(asks):
        began_with = name in sys.modules
        if asks:
            importlib.import_module(name)
        return began_with

    first, second, third = (run_ranks(function, 2, asks=asks) for asks in (False, True, False))

    assert list(first) == [False, False]
    assert list(second) == [False, False]
    assert list(third) == [True, True]


def test_ddp_trains_without_it():
    def function(rank):
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.full((4, 3), float(rank))).sum().backward()
        optimizer.step()
        return model.module.weight.detach(), has_run()

    (one, one_has_it), (other, other_has_it) = run_ranks(function, 2)

    assert torch.equal(one, other)
    assert [one_has_it, other_has_it] == [False, False]


def test_a_standin_of_a_module_leads_to_the_real_one():
    def function():
        utils = torch._dynamo.utils  # as DDP uses it
        mode = utils.get_optimize_ddp_mode()
        return mode == utils.counters and has_run(), mode == "ddp_optimizer", has_run()

    assert list(run_ranks(function, 1)) == [(False, True, True)]


def test_a_spawned_rank_defers_it_too():
    def function():
        train_a_step()
        return has_run()

    assert list(run_ranks(function, 1, launcher="spawn")) == [False]


@pytest.mark.slow
def test_a_process_that_has_imported_it_keeps_it():
    code = (
        "import sys, torch._dynamo; from gradsync.ranks.fast import dynamo; before = torch._dynamo;"
        "sys.exit(dynamo.defer() is not None or sys.modules['torch._dynamo'] is not before)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_a_module_of_it_is_executed_once():
    def function():
        import torch._dynamo.exc as found

        user = sys.modules["torch._dynamo.symbolic_convert"]
        return [user.exc is found, found.__spec__.name]

    assert run_ranks(function, 1)[0] == [True, "torch._dynamo.exc"]
