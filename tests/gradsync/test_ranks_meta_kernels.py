"""The kernels of the meta device run only when needed, and before anything relies on them."""

import subprocess
import sys

import pytest

from gradsync import run_ranks

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="needs the fork launcher"),
    pytest.mark.usefixtures("afresh"),
]
SETUP = """
import sys
from gradsync.ranks import meta_kernels
meta_kernels.put_off()
import torch
if "torch._decomp" in sys.modules:
    sys.exit(2)  # nothing was deferred
meta_kernels.watch()
"""


def has_run():
    return "torch._decomp" in sys.modules


def test_training_does_not_run_them():
    def function():
        import torch

        model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten())
        model.append(torch.nn.Linear(72, 2))
        optimizer = torch.optim.Adam(model.parameters())
        torch.nn.functional.cross_entropy(
            model(torch.ones(3, 1, 8, 8)), torch.ones(3).long()
        ).backward()
        optimizer.step()
        torch.distributed.all_reduce(torch.ones(2))
        return has_run()

    assert list(run_ranks(function, 2)) == [False, False]


@pytest.mark.parametrize(
    "tensor",
    [
        'torch.empty(3, 4, device="meta")',
        'torch.ones(3, 4).to("meta")',
        'torch.nn.Linear(4, 3, device="meta").weight.detach()',
        'torch.arange(12.0, device="meta").view(3, 4)',
        'torch.tensor([[1.0, 2, 3, 4]] * 3, device="meta")',
        'torch.empty_strided((3, 4), (4, 1), device="meta")',
        "torch._subclasses.fake_tensor.FakeTensorMode().from_tensor(torch.ones(3, 4))",
    ],
)
def test_they_run_before_the_first_meta_tensor(tensor):
    code = f"{SETUP}sys.exit(torch.linalg.svd({tensor})[0].shape != (3, 3))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert not done.stderr  # no warning about the replaced kernels


@pytest.mark.parametrize(
    "statement",
    [
        "import torch._decomp as found",
        "import torch._refs as found",
        "import torch.distributed.fsdp as found",
        "import torch._inductor.config as found",
    ],
)
def test_they_run_before_another_module_of_torch(statement):
    code = f"{SETUP}{statement}\nimport torch._decomp\n"
    code += "own = sys.modules[found.__name__] is not found\n"
    code += "sys.exit(own or len(torch._decomp.decomposition_table) < 500)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_later_runs_get_them_from_the_warm_process():
    def function():
        import torch

        ran = has_run()
        torch.empty(2, device="meta")
        return [ran, has_run()]

    assert run_ranks(function, 1)[0] == [False, True]
    assert run_ranks(function, 1)[0] == [True, True]
