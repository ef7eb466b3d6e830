"""Who a process is, and how all of them meet."""

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from gradsync.testing import assert_on_every_rank, assert_rank_by_rank, check, exercise, free_port

GUIDE = "Launching ranks"
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "10.0.0.7",
    "MASTER_PORT": "12345",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_NODELIST": "node[01-04,07],big1",
}


def probe_rank_info(trainer, environs):
    """Return, for each environment, the five fields, or the error that it gave."""
    answers = []
    for environ in environs:
        try:
            info = trainer.read_rank_info(dict(environ))
            fields = ("rank", "world_size", "local_rank", "master_addr", "master_port")
            answers.append([getattr(info, field) for field in fields])
        except NotImplementedError:
            raise
        except Exception as error:
            answers.append({"error": type(error).__name__, "text": str(error)})
    return answers


def read_rank_infos(ranks, environs):
    [answers] = ranks(probe_rank_info, 1, process_group=False, environs=environs)
    return answers


def shown(environ):
    return " ".join(f"{name}={value}" for name, value in environ.items()) or "(nothing set)"


def hold(environ, answer, wanted, code):
    check(
        answer == wanted,
        code,
        f"with {shown(environ)} read_rank_info gives {answer} "
        f"(rank, world size, local rank, master address and port; GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )


@exercise("phase1/read_rank_info", points=1.5)
def test_torchrun_variables_win(ranks):
    """torchrun's variables are read, also where Slurm's are set; what is not set has a default."""
    few = {"RANK": "1", "WORLD_SIZE": "2"}
    environs = [TORCHRUN, {**SLURM, **TORCHRUN}, few]

    plain, both, defaults = read_rank_infos(ranks, environs)

    hold(environs[0], plain, [5, 8, 1, "10.0.0.7", 12345], "launcher-not-read")
    hold(environs[1], both, [5, 8, 1, "10.0.0.7", 12345], "launcher-not-read")
    hold(few, defaults, [1, 2, 0, "127.0.0.1", 29500], "launcher-not-read")


@exercise("phase1/read_rank_info", points=1.5)
def test_slurm_variables_are_read(ranks):
    """Slurm's variables are read where torchrun's are not set, with MASTER_* where they are."""
    named = {**SLURM, "MASTER_ADDR": "login2", "MASTER_PORT": "4000"}
    few = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "solo"}

    plain, given, defaults = read_rank_infos(ranks, [SLURM, named, few])

    hold(SLURM, plain[:3], [3, 6, 1], "launcher-not-read")
    hold(SLURM, plain, [3, 6, 1, "node01", 29500], "wrong-master")
    hold(named, given, [3, 6, 1, "login2", 4000], "wrong-master")
    hold(few, defaults, [0, 1, 0, "solo", 29500], "launcher-not-read")


@exercise("phase1/read_rank_info", points=2)
def test_the_master_is_the_first_host_of_the_node_list(ranks, rng):
    """Each bracket of the first name stands for its first number, zeros kept."""
    number = int(rng.integers(1, 90))
    first_hosts = {
        "node5": "node5",
        "big1,node[01-04]": "big1",
        "node[01-04,07],big1": "node01",
        f"gpu-[{number},{number + 3}-{number + 5}]": f"gpu-{number}",
        "n[007-010]": "n007",
        "rack[1-2]node[3-4]": "rack1node3",
        "c[03-05].cluster,login": "c03.cluster",
        "a-b-c,d": "a-b-c",
    }
    environs = [{**SLURM, "SLURM_JOB_NODELIST": nodelist} for nodelist in first_hosts]

    answers = read_rank_infos(ranks, environs)

    for environ, answer, host in zip(environs, answers, first_hosts.values(), strict=True):
        hold(environ, answer, [3, 6, 1, host, 29500], "wrong-master")


@exercise("phase1/read_rank_info", points=0.5)
def test_without_a_launcher_it_is_a_single_process(ranks):
    """With nothing set, this is rank 0 of 1."""
    [answer] = read_rank_infos(ranks, [{}])

    hold({}, answer, [0, 1, 0, "127.0.0.1", 29500], "launcher-not-read")


@exercise("phase1/read_rank_info", points=0.5)
def test_it_reads_only_what_it_is_given(ranks):
    """It is a pure function: the process's own environment has no say."""

    def probe(trainer):
        os.environ.update(RANK="6", WORLD_SIZE="7", MASTER_PORT="1", SLURM_PROCID="2")
        environ = {"RANK": "0", "WORLD_SIZE": "2"}
        info = trainer.read_rank_info(environ)
        return [info.rank, info.world_size, info.master_port, environ]

    [seen] = ranks(probe, 1, process_group=False)

    check(
        seen == [0, 2, 29500, {"RANK": "0", "WORLD_SIZE": "2"}],
        "launcher-not-read",
        "read_rank_info looks at, or changes, something besides the mapping that it is given "
        f"(GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )


@exercise("phase1/read_rank_info", points=1)
def test_bad_environments_are_refused_by_name(ranks):
    """Half a set, a non-integer, or a rank outside the world is a ValueError with the name."""
    cases = [
        ({"RANK": "0"}, ("WORLD_SIZE", "RANK")),
        ({"WORLD_SIZE": "2"}, ("RANK",)),
        ({"SLURM_PROCID": "0"}, ("SLURM_NTASKS", "SLURM_PROCID")),
        ({"SLURM_NTASKS": "4"}, ("SLURM_PROCID", "SLURM_NTASKS")),
        ({**TORCHRUN, "RANK": "one"}, ("RANK",)),
        ({**TORCHRUN, "WORLD_SIZE": "4.5"}, ("WORLD_SIZE",)),
        ({**TORCHRUN, "LOCAL_RANK": ""}, ("LOCAL_RANK",)),
        ({**TORCHRUN, "MASTER_PORT": "http"}, ("MASTER_PORT",)),
        ({**TORCHRUN, "RANK": "8"}, ("RANK", "WORLD_SIZE")),
        ({**TORCHRUN, "RANK": "-1"}, ("RANK", "WORLD_SIZE")),
        ({**SLURM, "SLURM_PROCID": "6"}, ("SLURM_PROCID", "SLURM_NTASKS")),
        ({**SLURM, "SLURM_NTASKS": "many"}, ("SLURM_NTASKS",)),
    ]
    answers = read_rank_infos(ranks, [environ for environ, _ in cases])

    for (environ, names), answer in zip(cases, answers, strict=True):
        refused = isinstance(answer, dict) and answer["error"] == "ValueError"
        check(
            refused and any(name in answer["text"] for name in names),
            "bad-environment-accepted",
            f"with {shown(environ)} read_rank_info gives {answer}: a ValueError that names "
            f"{' or '.join(names)} is wanted (GUIDELINES, {GUIDE})",
            guide=GUIDE,
        )


def info_of(trainer, rank, world_size, port):
    return trainer.RankInfo(rank, world_size, rank, "127.0.0.1", port)


@pytest.mark.parametrize("world_size", [1, 3])
@exercise("phase1/setup_distributed", points=2)
def test_the_group_is_up_on_every_rank(ranks, world_size):
    """Afterwards the default group has every rank, on gloo where there is no GPU."""

    def probe(rank, world_size, trainer, port):
        device = trainer.setup_distributed(info_of(trainer, rank, world_size, port))
        total = torch.ones(1)
        dist.all_reduce(total)
        cpu = isinstance(device, torch.device) and device.type == "cpu"
        return [dist.get_rank(), dist.get_world_size(), dist.get_backend(), cpu, total.item()]

    seen = ranks(probe, world_size, process_group=False, port=free_port())

    assert_rank_by_rank(
        seen,
        [[rank, world_size, "gloo", True, world_size] for rank in range(world_size)],
        otherwise="the process group is not what it should be: by rank "
        f"[rank, world size, backend, returned the CPU, sum of ones] is {list(seen)}",
    )


@exercise("phase1/setup_distributed", points=1)
def test_it_returns_only_when_every_rank_is_up(ranks):
    """A rank that is early waits for the late one."""

    def probe(rank, world_size, trainer, port):
        if rank == 2:
            time.sleep(0.4)
        called = time.monotonic()
        trainer.setup_distributed(info_of(trainer, rank, world_size, port))
        return [called, time.monotonic()]

    seen = ranks(probe, 3, process_group=False, port=free_port())

    early = [rank for rank in (0, 1) if seen[rank][1] < seen[2][0]]
    check(
        not early,
        "no-rank-waits",
        f"setup_distributed returned on rank {early} before rank 2 had even called it "
        f"(GUIDELINES, {GUIDE})",
        ranks=early,
        guide=GUIDE,
    )


@exercise("phase1/setup_distributed", points=1)
def test_the_timeout_holds(ranks):
    """A rank that waits for one that never comes gives up after `timeout`."""

    def probe(trainer, port):
        began = time.monotonic()
        try:
            trainer.setup_distributed(info_of(trainer, 0, 2, port), timeout=timedelta(seconds=1))
        except NotImplementedError:
            raise
        except Exception:
            given_up = True
        else:
            given_up = False
        return [given_up, time.monotonic() - began]

    [[given_up, waited]] = ranks(probe, 1, process_group=False, port=free_port(), timeout=20.0)

    ended = "gave up" if given_up else "returned"
    check(
        given_up and waited < 15,
        "no-rank-waits",
        f"with timeout=1 s and a rank that never came, rank 0 {ended} after {waited:.0f} s "
        f"(GUIDELINES, {GUIDE})",
        guide=GUIDE,
    )


@exercise("phase1/cleanup_distributed", points=1)
def test_the_group_is_gone_afterwards(ranks):
    """After cleanup there is no default group, on any rank."""

    def probe(trainer):
        trainer.cleanup_distributed()
        return dist.is_initialized()

    seen = ranks(probe, 2)

    assert_on_every_rank(
        seen, False, otherwise="after cleanup_distributed() the process group is still there"
    )


@exercise("phase1/cleanup_distributed", points=1)
def test_cleanup_without_a_group_is_harmless(ranks):
    """It may be called twice, or with no group ever started."""

    def probe(trainer):
        trainer.cleanup_distributed()
        trainer.cleanup_distributed()
        return dist.is_initialized()

    seen = ranks(probe, 1, process_group=False)

    assert_on_every_rank(seen, False, otherwise="cleanup_distributed() started a group")
