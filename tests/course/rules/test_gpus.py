"""Mistakes in the devices that a rank uses on a machine with GPUs."""

from support.rules.gpus import another_gpu, batch_not_moved, idle_gpus


def test_a_wrong_gpu_is_named():
    found = another_gpu(["cuda:3", "cuda:0"], local_rank=3)

    assert found.code == "wrong-device"
    assert "uses cuda:0" in found.explanation
    assert another_gpu(["cuda:3", "cuda:3"], local_rank=3) is None
    assert another_gpu([], local_rank=3) is None


def test_a_gpu_without_a_number_is_the_current_one():
    assert "`cuda` without a number" in another_gpu(["cuda"], local_rank=3).explanation
    assert another_gpu(["cuda:3", "cuda"], local_rank=3) is None


def test_the_cpu_and_gloo_are_wrong_on_a_machine_with_gpus():
    def found(returned, *backends):
        taken = {"pinned": [], "returned": returned, "backends": backends}
        return idle_gpus(taken, local_rank=3)

    assert found(["cpu"], "nccl").code == "wrong-device"
    assert (
        "setup_distributed uses gloo if `backend` is None" in found(["cuda:3"], "gloo").explanation
    )
    for backends in (["nccl"], ["cpu:gloo,cuda:nccl"], [""], []):
        assert found(["cuda:3"], *backends) is None
        assert found(None, *backends) is None


def test_a_batch_that_is_not_moved_is_reported():
    there = {"inputs": ["cpu"], "targets": ["cpu"]}

    def found(at_home=there, **away):
        return batch_not_moved({"at_home": at_home, "away": {**there, **away}}, "Guide")

    assert found() is None
    assert found(targets=["cpu", "cpu"]) is None
    unmoved = found(targets=["cpu", "meta"])
    assert (unmoved.code, unmoved.guide) == ("wrong-device", "Guide")
    assert "passes the targets to the loss function" in unmoved.explanation
    assert "passes the inputs to the model" in found(inputs=["cpu", "meta"]).explanation
    unasked = found(at_home={"inputs": ["cpu"], "targets": []})
    assert unasked.code == "setting-ignored"
    assert "does not call the loss function" in unasked.explanation
