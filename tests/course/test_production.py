"""Each version of production.py trains on 2 ranks, with the results of the course's `train`."""

import re
import sys

import pytest
import torch
from launching import TORCHRUN, output_of

from gradsync import run_ranks
from gradsync.course.catalogue import find_course
from gradsync.data import digits
from gradsync.model import SmallCNN

SOLUTIONS = find_course().root / "solutions" / "phase2"
SAMPLES, BATCH, EPOCHS, LR = 64, 32, 4, 0.1


@pytest.fixture(autouse=True)
def builtin_digits(monkeypatch, tmp_path):
    """Use scikit-learn's digits, as on a machine without MNIST and a network."""
    monkeypatch.delenv("GRADSYNC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # empty


@pytest.fixture
def production(tmp_path):
    """Run production.py on 2 ranks; return the losses of its epochs and its weights."""
    script = (
        "import runpy, sys, gradsync.data as data\n"
        "data.download_mnist = lambda _: 'no network in a test'\n"
        f"sys.argv[0] = {str(SOLUTIONS / 'production.py')!r}\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    wrapper, weights = tmp_path / "offline.py", tmp_path / "weights.pt"
    wrapper.write_text(script)

    def run(*options):
        sizes = [f"--samples={SAMPLES}", f"--batch-size={BATCH}", f"--epochs={EPOCHS}"]
        command = [*TORCHRUN, str(wrapper), *options, *sizes, f"--lr={LR}", f"--save={weights}"]
        shown = output_of(command, tmp_path)
        losses = [float(loss) for loss in re.findall(r"train loss (\S+),", shown)]
        return losses, torch.load(weights, weights_only=True)

    return run


def _train(rank, world_size, solutions, data):
    sys.path.insert(0, solutions)
    from template_trainer import RankInfo, train

    torch.manual_seed(0)
    model = SmallCNN()
    info = RankInfo(rank, world_size, rank, "", 0)
    sizes = {"epochs": EPOCHS, "batch_size": BATCH, "accumulation_steps": 2}
    train(info, model, data, data, lr=LR, **sizes)
    return model.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "zero", "fsdp", "pipeline"])
def test_each_production_version_learns_like_the_exercises(production, way):
    losses, weights = production("--with", way)

    assert len(losses) == EPOCHS
    assert losses[-1] < losses[0] - 0.2
    data = digits(download=False).train.first(SAMPLES)  # one step uses all samples, in any order
    expected = run_ranks(_train, 2, solutions=str(SOLUTIONS), data=data)[0]
    assert {name: w.shape for name, w in weights.items()} == {
        name: w.shape for name, w in expected.items()
    }
    if way != "zero":  # it uses Adam
        torch.testing.assert_close(weights, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_the_production_version_of_phase_3_learns_and_resumes(tmp_path):
    script = find_course().root / "solutions" / "phase3" / "production.py"
    sizes = ["--rows=64", "--batch-size=4", "--lr=0.01"]

    first = output_of([*TORCHRUN, str(script), "--steps=6", *sizes], tmp_path)
    second = output_of([*TORCHRUN, str(script), "--steps=9", "--resume", *sizes], tmp_path)

    losses = re.findall(r"^step (\d+): loss (\S+),", first + second, re.MULTILINE)
    assert [int(number) for number, _ in losses] == list(range(9))
    assert float(losses[-1][1]) < float(losses[0][1]) - 1


@pytest.mark.slow
def test_the_pipeline_of_phase_3_learns(tmp_path):
    script = find_course().root / "solutions" / "phase3" / "production.py"
    options = ["--pipeline", "--steps=6", "--rows=64", "--batch-size=4", "--lr=0.01"]

    shown = output_of([*TORCHRUN, str(script), *options], tmp_path)

    losses = [float(loss) for loss in re.findall(r"loss (\S+)", shown)]
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 1
