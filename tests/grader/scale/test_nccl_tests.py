"""Reading the output of all_reduce_perf, in the formats of several versions."""
# ruff: noqa: E501

import pytest

from gradsync.errors import UnusableInput
from gradsync.scale.costs import Network
from gradsync.scale.fitting import Timing
from gradsync.scale.nccl_tests import parse, read_nccl_tests
from gradsync.scale.study import fit_cluster

NEW = """\
# nThread 1 nGpus 1 minBytes 0 maxBytes 67108864 step: 4(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid   4242 on    node-a device  0 [0x07] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid   4243 on    node-a device  1 [0x0f] NVIDIA A100-SXM4-40GB
#  Rank  2 Group  0 Pid   8484 on    node-b device  0 [0x07] NVIDIA A100-SXM4-40GB
#  Rank  3 Group  0 Pid   8485 on    node-b device  1 [0x0f] NVIDIA A100-SXM4-40GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     0.21    0.00    0.00      0     0.20    0.00    0.00      0
        1024           256     float     sum      -1    31.50    0.03    0.05      0    30.90    0.03    0.05      0
    67108864      16777216     float     sum      -1     5012   13.39   20.08    N/A     5009   13.40   20.10    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 10.07
"""
OLD = """\
#   Rank  0 Pid   1320 on node-a device  0 [0x00] Tesla V100-SXM2-16GB
#   Rank  1 Pid   2066 on node-b device  0 [0x00] Tesla V100-SXM2-16GB
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
        4096          1024     float     sum    40.10    0.10    0.10  0e+00    39.00    0.10    0.10  0e+00
  1310720000     327680000     float     sum  1187231    1.10    1.10  0e+00  1187000    1.10    1.10  0e+00
"""


def test_sizes_and_times_of_a_new_version_are_read():
    assert parse(NEW, "run.txt") == [Timing(4, 1024, 31.5e-6), Timing(4, 67108864, 5012e-6)]


def test_an_old_version_has_no_column_for_the_root():
    assert parse(OLD, "run.txt") == [Timing(2, 4096, 40.1e-6), Timing(2, 1310720000, 1.187231)]


def test_tags_of_mpirun_are_ignored():
    tagged = "".join(f"[1,0]<stdout>:{line}\n" for line in NEW.splitlines())

    assert parse(tagged, "run.txt") == parse(NEW, "run.txt")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("hello\n", "run.txt has no rows"),
        (NEW.replace(" sum ", "none "), "not the output of an all-reduce"),
        ("\n".join(line for line in NEW.splitlines() if "Rank" not in line), "at least 2 ranks"),
        ("\n".join(line for line in OLD.splitlines() if "4096" not in line), "fewer than 2 sizes"),
    ],
)
def test_other_files_are_refused(text, complaint):
    with pytest.raises(UnusableInput, match=complaint):
        parse(text, "run.txt")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UnusableInput, match=r"absent\.txt can't be read"):
        read_nccl_tests([tmp_path / "absent.txt"])


def test_a_cluster_is_fitted_from_some_sizes_and_tested_with_the_others():
    known = Network("ring", 5e-6, 5e-11)
    sizes = [1024 * 4**power for power in range(8)]

    fit = fit_cluster([Timing(16, size, known.all_reduce(size, 16)) for size in sizes])

    assert fit.network.beta == pytest.approx(known.beta, rel=0.01)
    assert len(fit.fitted) == 5
    assert [prediction.count for prediction in fit.predictions] == [3]
    assert fit.predictions[0].median_error < 0.01
