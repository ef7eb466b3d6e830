"""The analysis follows names, functions, classes and files, and the dependencies of conditions."""

from pathlib import Path

import pytest

from gradsync.errors import UnusableInput
from gradsync.review import review, review_text
from gradsync.review.flow.values import Thing

START = """
import os
import torch
import torch.distributed as dist
"""


def codes(body, path="script.py"):
    return [finding.code for finding in review_text(START + body, path).findings]


@pytest.mark.parametrize(
    "condition",
    [
        'int(os.environ["MV2_COMM_WORLD_RANK"]) == 0',
        "dist.get_rank() == 0",
        "not dist.get_rank()",
        "int(os.environ['RANK']) == 0",
        "os.environ.get('RANK', '0') == '0'",
        "args.local_rank in [-1, 0]",
        "is_main_process()",
        "self.config['rank'] == 0",
        "dist.get_world_size() > 1 and dist.get_rank() == 0",
    ],
)
def test_a_collective_under_a_condition_on_the_rank_is_found(condition):
    assert codes(f"def f(args, self):\n    if {condition}:\n        dist.barrier()\n") == ["DDP015"]


@pytest.mark.parametrize(
    "condition",
    [
        "dist.is_initialized()",
        "dist.get_world_size() > 1",
        "args.local_rank != -1",
        "'RANK' in os.environ",
        "rank >= 0",
        "rank is not None",
        "args.distributed",
        "epoch % 10 == 0",
    ],
)
def test_a_condition_that_is_the_same_on_every_rank_is_fine(condition):
    body = f"def f(args, rank, epoch):\n    if {condition}:\n        dist.barrier()\n"

    assert codes(body) == []


def test_a_rank_is_followed_through_variables_functions_and_attributes():
    body = """
class Run:
    def __init__(self):
        self.number = dist.get_rank()
        self.first = self.is_first()

    def is_first(self):
        return self.number == 0

    def end(self):
        if self.first:
            finish()

def finish():
    dist.barrier()

Run().end()
"""
    assert codes(body) == ["DDP015"]


def test_a_collective_that_both_branches_call_is_fine():
    body = """
def share(objects):
    if dist.get_rank() == 0:
        dist.scatter_object_list([None], objects)
    else:
        dist.scatter_object_list([None], None)
"""
    assert codes(body) == []


def test_a_collective_of_a_smaller_group_is_fine():
    body = (
        "def f(x, group):\n    if dist.get_rank() < 2:\n        dist.all_reduce(x, group=group)\n"
    )

    assert codes(body) == []


def test_an_error_is_not_an_early_return():
    body = (
        "def f(x):\n    if dist.get_rank() > 8:\n        raise ValueError\n    dist.all_reduce(x)\n"
    )

    assert codes(body) == []


def test_an_early_return_under_a_condition_on_the_rank_is_found():
    body = """
def f(x, path):
    if dist.get_rank() == 0:
        if os.path.exists(path):
            return
    dist.all_reduce(x)
"""
    assert codes(body) == ["DDP016"]


def test_an_exit_status_is_not_an_early_return():
    body = """
def main(x, path):
    if dist.get_rank() == 0:
        if os.path.exists(path):
            print("the file exists")
            return 1
    dist.all_reduce(x)
    return 0
"""
    assert codes(body) == []


def test_an_early_return_affects_only_its_own_function():
    body = """
def log(text):
    if dist.get_rank() != 0:
        return
    print(text)

def f(x):
    log("begin")
    dist.all_reduce(x)
"""
    assert codes(body) == []


def test_a_value_that_all_ranks_have_reduced_is_fine():
    body = """
def f(loader, model):
    for x in torch.utils.data.DataLoader(loader):
        loss = model(x).mean()
        dist.all_reduce(loss)
        if loss < 0.1:
            dist.barrier()
            break
"""
    assert codes(body) == []


def test_a_condition_on_a_ranks_own_samples_is_found():
    body = """
def f(dataset, model):
    for x in torch.utils.data.DataLoader(dataset):
        if x.mean() < 0.1:
            dist.barrier()
"""
    assert codes(body) == ["DDP017"]


def test_a_rank_is_followed_through_context_managers():
    body = """
import contextlib

@contextlib.contextmanager
def world():
    yield dist.get_world_size() > 1, dist.get_rank() == 0

class First:
    def __enter__(self):
        return dist.get_rank() == 0

with world() as (many, chief):
    if many:
        dist.barrier()
    if chief:
        dist.all_reduce(torch.ones(1))
    with First() as first:
        if first:
            dist.broadcast(torch.ones(1), 0)
"""
    assert codes(body) == ["DDP015", "DDP015"]


LOOP = """
class Stopping:
    def __init__(self):
        self.best, self.bad, self.stop = 1e9, 0, False

    def step(self, loss):
        if loss < self.best:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
            self.stop = self.bad > 3

def average(tensor):
    dist.all_reduce(tensor)

def train(dataset, module):
    sampler = torch.utils.data.DistributedSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, sampler=sampler)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    stopping, bad, value = Stopping(), 0, torch.tensor(1.0)
    while {test}:
        for x in loader:
            loss = model(x).sum()
            loss.backward()
        value = loss.detach()
        {last}
"""


@pytest.mark.parametrize(
    "last",
    [
        "if value < 1: break",
        "if value < 1: return",
        "if value.item() < 1 and bad > 3: break",
        "stopping.step(value)\n        if stopping.stop: break",
        "bad = bad + 1 if value < 1 else 0\n        if value > 2: bad += 1\n        if bad: break",
        "if bad < 5:\n            if value < 1: break",
    ],
)
def test_a_loop_that_a_rank_leaves_because_of_its_own_samples_is_found(last):
    assert codes(LOOP.format(test="True", last=last)) == ["DDP017"]


def test_a_while_that_ends_because_of_a_ranks_own_samples_is_found():
    assert codes(LOOP.format(test="value.item() > 0.1", last="pass")) == ["DDP017"]


@pytest.mark.parametrize(
    "last",
    [
        "if value < 1: bad += 1",
        "average(value)\n        if value < 1: break",
        "for t in [value]: dist.all_reduce(t)\n        if value < 1: break",
        "dist.all_reduce(tensor=value)\n        if value < 1: break",
        "value = torch.distributed.nn.all_reduce(value)\n        if value < 1: break",
        "value = accelerator.reduce(value)\n        if value < 1: break",
        "value = self.gather(value)\n        if value < 1: break",
        "helpers.sync_(value)\n        if value < 1: break",
        "if len(x) < 3: break",
        "if x.shape[0] < 3: break",
        "if model.module.weight.grad.norm() > 3: break",
        "if value < 1: raise RuntimeError",
        "stop = dist.get_rank() >= 0 and args.stop\n        if stop: break",
    ],
)
def test_a_loop_that_all_ranks_leave_together_is_fine(last):
    assert codes(LOOP.format(test="True", last=last)) == []


def test_a_loop_of_unequal_lengths_inside_join_is_fine():
    body = LOOP.format(test="True", last="if value < 1: break")

    assert codes(body + "\ndef f(model):\n    with Join([model]):\n        pass\n") == []


def test_functions_of_files_beside_a_script_are_followed(tmp_path):
    (tmp_path / "tools.py").write_text(
        "import torch.distributed as dist\n\ndef first():\n    return dist.get_rank() == 0\n"
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import torch.distributed as dist\nfrom tools import first\n\n"
        "if first():\n    dist.barrier()\n"
    )

    found = review([script]).findings

    assert [(f.code, Path(f.path).name, f.line) for f in found] == [("DDP015", "script.py", 5)]


def test_a_file_that_a_program_uses_gets_findings_even_if_the_user_did_not_name_it(tmp_path):
    (tmp_path / "tools.py").write_text(
        "import torch.distributed as dist\n\ndef end():\n    if dist.get_rank() == 0:\n"
        "        dist.barrier()\n"
    )
    script = tmp_path / "script.py"
    script.write_text("from tools import end\n\nend()\n")

    tools = tmp_path / "tools.py"
    assert [(f.path, f.code) for f in review([script]).findings] == [(str(tools), "DDP015")]
    assert [(f.path, f.code) for f in review([script, tools]).findings] == [(str(tools), "DDP015")]


def test_only_the_reviewed_file_is_the_main_module(tmp_path):
    (tmp_path / "tools.py").write_text(
        "import torch.distributed as dist\n\nif __name__ == '__main__':\n"
        "    if dist.get_rank() == 0:\n        dist.barrier()\n"
    )
    script = tmp_path / "script.py"
    script.write_text("import tools\n\nprint(tools)\n")

    assert review([script]).findings == ()
    assert [f.code for f in review([tmp_path / "tools.py"]).findings] == ["DDP015"]


def test_recursion_and_cyclic_imports_end(tmp_path):
    (tmp_path / "a.py").write_text(
        "import b\nimport torch.distributed\n\ndef f(n):\n    f(n - 1)\n\nf(3)\n"
    )
    (tmp_path / "b.py").write_text("import a\n\ndef g():\n    a.f(1)\n\ng()\n")

    assert review([tmp_path / "a.py", tmp_path / "b.py"]).findings == ()


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("# gradsync: ignore[DDP015]", []),
        ("# gradsync: ignore[DDP001, ddp015]", []),
        ("# gradsync: ignore", []),
        ("# gradsync: ignore[DDP001]", ["DDP015"]),
        ("# DDP015", ["DDP015"]),
    ],
)
def test_a_comment_accepts_a_finding(comment, expected):
    assert codes(f"if dist.get_rank() == 0:\n    dist.barrier()  {comment}\n") == expected


@pytest.mark.parametrize("text", ["def f(:\n", "x = '\0'\n", "é" * 2_000_001])
def test_a_file_that_is_not_python_causes_one_clear_error(text):
    with pytest.raises(UnusableInput, match=r"script\.py"):
        review_text(text, "script.py")


def test_a_column_counts_characters():
    body = "if dist.get_rank() == 0:\n    'éé'; dist.barrier()\n"
    found = review_text(START + body, "script.py").findings

    assert [f.column for f in found] == [len("    'éé'; ") + 1]


def test_a_condition_in_another_file_is_named_with_its_file(tmp_path):
    (tmp_path / "helper.py").write_text(
        "import torch.distributed as dist\n\ndef check():\n    dist.barrier()\n"
    )
    script = tmp_path / "train.py"
    script.write_text(
        "import torch.distributed as dist\nfrom helper import check\n"
        "dist.init_process_group('gloo')\nif dist.get_rank() == 0:\n    check()\n"
        "dist.destroy_process_group()\n"
    )

    (found,) = review([script]).findings

    assert (found.path, found.line) == (str(tmp_path / "helper.py"), 4)
    assert "the condition in train.py:4," in found.reason


def test_things_have_the_same_order_in_each_review():
    things = [Thing("model", None) for _ in range(9)]

    assert sorted(things, key=hash) == things
