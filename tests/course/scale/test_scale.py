"""`gradsync scale` with nccl-tests' output, and real all-reduces over gloo."""

import json

import pytest
from typer.testing import CliRunner

from gradsync.cli.every_command import scale
from gradsync.errors import UnusableInput
from gradsync.scale.cost_model import CostModel
from gradsync.scale.measure import all_reduces
from gradsync.scale.nccl_tests import read_nccl_tests
from gradsync.scale.samples import Sample

RING = CostModel("ring", call=1e-5, alpha=4e-6, beta=5e-12)


def nccl_output(ranks):
    """Return a text in the layout of nccl-tests, with times that follow RING."""
    lines = ["# nThread 1 nGpus 1 minBytes 1024 maxBytes 67108864 step: 4(factor)", "#"]
    lines += [f"#  Rank {r:2} Group  0 Pid {100 + r} on node01 device {r:2}" for r in range(ranks)]
    lines += [
        "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    ]
    for power in range(10, 27, 2):
        size, time = 2**power, 1e6 * RING.seconds(ranks, 2**power)
        row = f"{size:12} {size // 4:12} float sum -1 {time:8.2f} 1.00 1.00 0 {time:8.2f} 1.0 1.0 0"
        lines.append(row)
    return "\n".join([*lines, "# Out of bounds values : 0 OK"])


def test_the_table_of_nccl_tests_is_read():
    samples = read_nccl_tests(nccl_output(8))

    assert len(samples) == 9
    assert samples[0] == Sample(8, 1024, pytest.approx(RING.seconds(8, 1024), rel=1e-2))


@pytest.mark.parametrize("text", ["", "hello", nccl_output(1)])
def test_another_text_is_refused(text):
    with pytest.raises(UnusableInput, match="not the output of nccl-tests"):
        read_nccl_tests(text)


def test_measurements_of_a_cluster_give_a_table_a_plot_and_json(tmp_path):
    logs = []
    for ranks in (8, 16):
        logs.append(tmp_path / f"{ranks}.txt")
        logs[-1].write_text(nccl_output(ranks))
    names = [word for log in logs for word in ("--nccl", str(log))]
    files = ["--json", str(tmp_path / "all.json"), "--plot", str(tmp_path / "all.png")]

    done = CliRunner().invoke(scale.app, ["scale", *names, *files])

    assert done.exit_code == 0, done.output
    assert "Median error of the predictions that were not fitted: 0%" in done.output
    found = json.loads((tmp_path / "all.json").read_text())
    assert found["chosen"] == "ring"
    assert set(found["samples_per_second"]["buckets"]) == {str(2**power) for power in range(11)}
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


def test_a_missing_folder_is_refused_before_anything_is_measured(tmp_path):
    done = CliRunner().invoke(scale.app, ["scale", "--json", str(tmp_path / "no" / "all.json")])

    assert isinstance(done.exception, UnusableInput)


def test_all_reduces_over_gloo_are_measured():
    small, large = all_reduces(2, [1024, 2**22])

    assert (small.ranks, small.size, large.size) == (2, 1024, 2**22)
    assert 0 < small.seconds < large.seconds
