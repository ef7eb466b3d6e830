"""The visible tests of launching, for `gradsync check`: a process's rank, and the group of two."""

from dataclasses import asdict

import pytest
import torch
import torch.distributed as dist

from gradsync.testing import check, exercise, free_port, raise_mistake
from gradsync.text import FORGOTTEN
from support.probes.gpus import taken_among_gpus
from support.rules.gpus import idle_gpus
from support.rules.launching import string_for_a_number

GUIDE = "Launching ranks"
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "4000",
}
SLURM = {
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_NODELIST": "cpu[11-12]",
}


def who_am_i(trainer, environ):
    """Return the fields that read_rank_info returns, or the error that it raises."""
    try:
        info = trainer.read_rank_info(environ)
    except ValueError as error:  # or a subclass
        return f"ValueError: {error}"
    except KeyError as error:
        return f"KeyError: {error}"
    if info is None:
        return None
    return asdict(info) if isinstance(info, trainer.RankInfo) else repr(info)


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        pytest.param(TORCHRUN, (1, 2, 1, "10.0.0.1", 4000), id="torchrun"),
        pytest.param(SLURM, (2, 4, 0, "cpu11", 29500), id="slurm"),
        pytest.param({}, (0, 1, 0, "127.0.0.1", 29500), id="alone"),
    ],
)
@exercise("phase1/read_rank_info", points=1)
def test_the_rank_is_read_from_the_environment(ranks, environ, wanted):
    """The launcher's variables give the rank; without them, the process is rank 0 of 1."""
    [seen] = ranks(who_am_i, world_size=1, process_group=False, environ=environ)

    fields = ("rank", "world_size", "local_rank", "master_addr", "master_port")
    expected = dict(zip(fields, wanted, strict=True))
    variables = ", ".join(f"{name}={value}" for name, value in environ.items()) or "no variables"
    is_info = isinstance(seen, dict)
    raise_mistake(string_for_a_number(variables, list(seen.values()) if is_info else None))
    knows_its_rank = is_info and all(seen[name] == expected[name] for name in fields[:3])
    check(
        seen == expected,
        "wrong-master" if knows_its_rank else "launcher-not-read",
        f"With {variables}, read_rank_info gives {seen}, but should give {expected}."
        f"{f' {FORGOTTEN}' if seen is None else ''}",
        guide=GUIDE,
    )


@exercise("phase1/read_rank_info", points=1)
def test_a_rank_without_a_world_size_raises_an_error(ranks):
    """A rank without a world size raises a ValueError that names the variable."""
    [seen] = ranks(who_am_i, world_size=1, process_group=False, environ={"RANK": "0"})

    check(
        isinstance(seen, str)
        and seen.startswith("ValueError")
        and ("RANK" in seen or "WORLD_SIZE" in seen),
        "bad-environment-accepted",
        f"With RANK=0 and no WORLD_SIZE, read_rank_info gives {seen}. It should raise a ValueError "
        "that names the variable.",
        guide=GUIDE,
    )


@exercise("phase1/setup_distributed", points=1)
def test_two_ranks_form_a_group(ranks):
    """After setup_distributed, two ranks can sum a number: 1 on each rank gives 2.

    On a machine with GPUs, simulated here, rank 0 with local_rank 3 uses GPU 3 and nccl.
    """

    def probe(rank, world_size, trainer, port):
        info = trainer.RankInfo(rank, world_size, rank, "127.0.0.1", port)
        device = trainer.setup_distributed(info)
        if not dist.is_initialized():
            return "no process group"
        total = torch.ones(1)
        dist.all_reduce(total)
        return {
            "rank": dist.get_rank(),
            "sum": total.item(),
            "device": getattr(device, "type", str(device)),
        }

    seen = ranks(probe, world_size=2, process_group=False, port=free_port(), timeout=10)

    wrong = [rank for rank in (0, 1) if seen[rank] != {"rank": rank, "sum": 2.0, "device": "cpu"}]
    check(
        not wrong,
        "group-not-initialised",
        f"After setup_distributed, the ranks report {list(seen)}. The ranks should be 0 and 1, the "
        "sum over both 2.0, and the returned device the CPU.",
        ranks=wrong,
        guide=GUIDE,
    )

    def probe_gpus(trainer, port):
        return taken_among_gpus(trainer, 0, 1, 3, "127.0.0.1", port)

    [taken] = ranks(probe_gpus, world_size=1, process_group=False, port=free_port(), timeout=10)
    raise_mistake(idle_gpus(taken, local_rank=3))


@exercise("phase1/cleanup_distributed", points=1)
def test_cleanup_destroys_the_group(ranks):
    """After cleanup_distributed, there is no process group."""

    def probe(trainer):
        trainer.cleanup_distributed()
        return dist.is_initialized()

    [is_there] = ranks(probe, world_size=1)

    check(
        not is_there,
        "exception",
        "After cleanup_distributed, there is still a process group. Destroy it.",
        guide=GUIDE,
    )


@exercise("phase1/cleanup_distributed", points=1)
def test_cleanup_without_a_group_does_nothing(ranks):
    """cleanup_distributed does nothing if no process group was started."""

    def probe(trainer):
        try:
            trainer.cleanup_distributed()
        except (ValueError, AssertionError) as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    [happened] = ranks(probe, world_size=1, process_group=False)

    check(
        happened == "nothing",
        "exception",
        f"Without a process group, cleanup_distributed raised {happened}. It should do nothing: "
        "check whether there is a group first.",
        guide=GUIDE,
    )
