"""Mistakes in setting up a group, known by where a rank went and by the GPU that it would take."""

from gradsync.diagnose.launching import another_gpu, met_elsewhere


def test_ranks_that_went_elsewhere_are_named():
    found = met_elsewhere([[], ["10.0.0.2"], ["127.0.0.1"]], "10.0.0.2")

    assert (found.code, found.ranks) == ("wrong-master", (2,))
    assert "rank 2 looked for the others at 127.0.0.1" in found.explanation


def test_who_went_to_the_master_or_nowhere_is_right():
    assert met_elsewhere([[], ["10.0.0.2"], []], "10.0.0.2") is None


def test_another_gpu_than_the_local_rank_s_is_named():
    found = another_gpu(["cuda:3", "cuda:0"], local_rank=3)

    assert found.code == "launcher-not-read"
    assert "takes cuda:0" in found.explanation
    assert another_gpu(["cuda:3", "cuda:3"], local_rank=3) is None
    assert another_gpu([], local_rank=3) is None
