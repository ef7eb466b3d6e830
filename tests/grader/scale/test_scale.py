"""`gradsync scale`: measurements, tables, JSON and a plot."""

import io
import json
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from gradsync.scale.costs import Compute, Network
from gradsync.scale.fitting import Timing
from gradsync.scale.measuring import Plan
from gradsync.scale.strategies import Workload
from gradsync.scale.study import Fit, Simulated, study, study_machine
from gradsync.scale.tables import bytes_shown, shown, tables

SMALL = Plan(
    fitted_sizes=(1024, 65536, 2**20),
    other_sizes=(8192,),
    fitted_ranks=(2,),
    other_ranks=(3,),
    fitted_batches=(4, 16),
    fitted_sequences=(1, 2),
    fitted_steps=(8,),
    other_steps=(4,),
    rounds=1,
)


def row(size, ranks):
    microseconds = 1e6 * Network("ring", 1e-5, 1e-10).all_reduce(size, ranks)
    return f"{size} {size // 4} float sum -1 {microseconds:.2f} 1 1 0 {microseconds:.2f} 1 1 0"


@pytest.fixture
def cluster(tmp_path):
    path = tmp_path / "16.txt"
    ranks = [f"#  Rank {rank:2d} Group  0 Pid 7 on node" for rank in range(16)]
    path.write_text("\n".join([*ranks, *(row(1024 * 4**power, 16) for power in range(9))]))
    return path


def run(*arguments):
    command = [sys.executable, "-m", "gradsync", "scale", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def test_this_machine_is_measured_and_predicted():
    subjects = []

    found = study_machine(SMALL, 2, 64, Simulated(), subjects.append)

    assert "measuring compute, round 1 of 1" in subjects
    assert [prediction.count for prediction in found.fit.predictions] == [1, 4, 3]
    assert all(timing.seconds > 0 for timing in found.fit.timings)
    assert found.workload.compute.per_sample > 0
    text = text_of(found)
    assert "Training steps of the small CNN on this machine" in text
    assert "all-reduce, ranks that were not fitted" in text
    assert "A transformer of 4 layers, width 128, 3 MiB of parameters, on 4 ranks" in text
    assert found.transformer.compute.per_sample > 0


def text_of(study):
    console = Console(width=200, file=io.StringIO())
    for part in tables(study):
        console.print(part)
    return console.file.getvalue()


@pytest.fixture
def forecast():
    """Return a function that makes a study: 10 MiB of gradients, a network with low latency."""
    network = Network("ring", 1e-9, 1e-9, 1.0, cores=2)
    timings = tuple(Timing(2, size, network.all_reduce(size, 2)) for size in (1024, 2**20, 2**24))
    fit = Fit(network, timings, timings, ())

    def make(load=0.0, **compute):
        workload = Workload(Compute(0.0, 1e-3, **compute), 10 * 2**20)
        return replace(study("gloo on this machine", fit, workload, workload, None, 64), load=load)

    return make


def test_the_summary_names_the_batches_with_which_two_ranks_are_faster(forecast):
    text = text_of(forecast())

    # An all-reduce takes 10.5 ms: as long as computing 11 samples, and a quarter of computing 42.
    assert "With fewer than 11 samples on each rank, 2 ranks are slower than 1." in text
    assert "To be 1.6 times as fast, they need 42 samples on each rank." in text


def test_a_busy_machine_is_reported(forecast):
    assert "load 7.7 on 2 cores" in text_of(forecast(load=7.7))
    assert "Other programs" not in text_of(forecast(load=0.5))


@pytest.mark.slow
def test_a_cluster_and_a_model_are_forecast(cluster, tmp_path):
    as_json, plot = tmp_path / "scale.json", tmp_path / "scale.png"
    model = ("--parameters", 124_000_000, "--sample-ms", 9)

    done = run("--nccl-tests", cluster, *model, "--json", as_json, "--plot", plot)

    assert done.returncode == 0, done.stderr
    figures = json.loads(as_json.read_text())
    assert figures["fit"]["network"]["alpha"] == pytest.approx(1e-5, rel=0.01)
    assert figures["workload"]["gradients"] == 496_000_000
    assert {forecast["ranks"] for forecast in figures["forecasts"]} >= {1, 2, 1024}
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "2 ranks are slower than 1" in done.stdout or "2 ranks are faster" in done.stdout
    assert figures["splits"] == []
    assert "Pass --transformer LAYERS WIDTH TOKENS" in done.stdout


@pytest.mark.slow
def test_ways_to_split_a_transformer_are_compared(cluster, tmp_path):
    as_json, plot = tmp_path / "scale.json", tmp_path / "scale.png"
    model = ("--transformer", 12, 768, 1024, "--sample-ms", 9)

    done = run("--nccl-tests", cluster, *model, "--json", as_json, "--plot", plot)

    assert done.returncode == 0, done.stderr
    figures = json.loads(as_json.read_text())
    assert figures["workload"]["gradients"] == 4 * 12 * 12 * 768**2
    cells = {(split["way"], split["ranks"]): split["cost"] for split in figures["splits"]}
    data, zero = (cells[way, 8]["states"] for way in ("data parallel", "ZeRO-3"))
    assert zero == pytest.approx(data / 8 + data / 4 / 12)  # and one whole layer
    assert ("pipeline", 16) not in cells
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "A transformer of 12 layers, width 768" in done.stdout


def test_a_transformer_without_layers_is_refused():
    done = run("--transformer", 0, 768, 1024)

    assert done.returncode == 2
    assert "--transformer needs three numbers of at least 1." in done.stderr


def test_a_file_that_is_not_of_nccl_tests_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("nothing here\n")

    done = run("--nccl-tests", path)

    assert done.returncode == 2
    assert "notes.txt has no rows of nccl-tests" in done.stderr


def test_a_missing_folder_is_reported_before_anything_is_measured(tmp_path):
    done = run("--json", tmp_path / "absent" / "scale.json")

    assert done.returncode == 2
    assert "There is no folder for" in done.stderr


@pytest.mark.parametrize(
    "option",
    [
        ("--plot", "scale.png"),
        ("--batch-size", 64),  # even the default, which would not change anything
        ("--parameters", 1000),
        ("--sample-ms", 3),
        ("--transformer", 1, 64, 8),
        ("--nccl-tests", "16.txt"),
    ],
)
def test_an_option_without_effect_on_mine_is_refused(option):
    done = run("--mine", *option)

    assert done.returncode == 2
    assert f"{option[0]} has no effect with --mine" in done.stderr


def test_times_and_sizes_have_suitable_units():
    assert [shown(s) for s in (0.0, 2.5e-6, 0.0123, 3.0)] == ["0 ns", "2.5 µs", "12.3 ms", "3 s"]
    assert [bytes_shown(n) for n in (64, 1024, 25 * 2**20)] == ["64 B", "1 KiB", "25 MiB"]
