"""The visible tests of launching, for `gradsync check`: a process's rank, and the group of two."""

from gradsync.testing import exercise
from support.promises import group, rank_info

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
    "SLURM_LOCALID": "1",
    "SLURM_JOB_NODELIST": "cpu[11-12]",
}


# First: variables of the test's own process are a misleading reason for wrong fields.
@exercise("phase1/read_rank_info", points=1)
def test_only_the_argument_is_read(ranks):
    """The result depends only on `environ`, whatever os.environ contains."""
    few, fewer = {"RANK": "0", "WORLD_SIZE": "2"}, {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
    rank_info.only_the_argument_read(ranks, [few, SLURM, fewer, {}, {"RANK": "0"}])


@exercise("phase1/read_rank_info", points=1)
def test_torchrun_variables_are_read(ranks):
    """RANK=1 WORLD_SIZE=2 ... gives rank 1 of 2, even beside Slurm's variables."""
    fields = [1, 2, 1, "10.0.0.1", 4000]
    rank_info.fields_read(ranks, [(TORCHRUN, fields), ({**SLURM, **TORCHRUN}, fields)])


@exercise("phase1/read_rank_info", points=1)
def test_slurm_variables_are_read(ranks):
    """SLURM_PROCID=2 SLURM_NTASKS=4 ... gives rank 2 of 4; MASTER_* replace the node list."""
    master = {"MASTER_ADDR": "login", "MASTER_PORT": "4000"}
    cases = [
        (SLURM, [2, 4, 1, "cpu11", 29500]),
        ({**SLURM, **master}, [2, 4, 1, "login", 4000]),
        ({**SLURM, "LOCAL_RANK": "3"}, [2, 4, 1, "cpu11", 29500]),
    ]
    rank_info.fields_read(ranks, cases)


@exercise("phase1/read_rank_info", points=1)
def test_the_master_is_the_first_host_of_the_node_list(ranks):
    """`node[01-04,07],big1` gives `node01`, and `a-b,c` gives `a-b`."""
    first_hosts = {
        "solo": "solo",
        "node[01-04,07],big1": "node01",
        "big1,node[01-04]": "big1",
        "a-b,c": "a-b",
        "gpu-[5,8-9]": "gpu-5",
        "rack[1-2]node[3-4]": "rack1node3",
        "c[03-05].cluster,login": "c03.cluster",
    }
    rank_info.first_hosts_read(ranks, SLURM, first_hosts)


@exercise("phase1/read_rank_info", points=1)
def test_variables_that_are_not_set_have_defaults(ranks):
    """The defaults are local rank 0, address 127.0.0.1 and port 29500."""
    cases = [
        ({"RANK": "1", "WORLD_SIZE": "2"}, [1, 2, 0, "127.0.0.1", 29500]),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, [1, 2, 0, "127.0.0.1", 29500]),
    ]
    rank_info.fields_read(ranks, cases)


@exercise("phase1/read_rank_info", points=1)
def test_without_a_launcher_there_is_a_single_process(ranks):
    """No variables, or only LOCAL_RANK, MASTER_ADDR or MASTER_PORT: rank 0 of 1."""
    names = ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    lone = [{name: TORCHRUN[name]} for name in names]
    rank_info.alone_without_launcher(ranks, [{"SLURM_JOB_NODELIST": "cpu[11-12]"}, *lone])


@exercise("phase1/read_rank_info", points=1)
def test_a_half_set_launcher_raises_an_error(ranks):
    """RANK=0 without WORLD_SIZE, or the reverse, raises a ValueError that names one of them."""
    both, slurms = ("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")
    cases = [
        ({"RANK": "0"}, both),
        ({"WORLD_SIZE": "2"}, both),
        ({**SLURM, "RANK": "0"}, both),
        ({**SLURM, "WORLD_SIZE": "2"}, both),
        ({"SLURM_PROCID": "0"}, slurms),
        ({"SLURM_NTASKS": "2"}, slurms),
    ]
    rank_info.bad_environments_refused(ranks, cases)


@exercise("phase1/read_rank_info", points=1)
def test_a_bad_value_raises_an_error_with_the_name(ranks):
    """RANK=one, or rank 2 or -1 of 2, raises a ValueError that names the variable."""
    numbers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
    of_slurm = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "MASTER_PORT")
    cases = [
        *(({**TORCHRUN, name: value}, (name,)) for name in numbers for value in ("one", "1.5")),
        ({**TORCHRUN, "LOCAL_RANK": ""}, ("LOCAL_RANK",)),
        *(({**SLURM, name: "one"}, (name,)) for name in of_slurm),
        *(({**TORCHRUN, "RANK": rank}, ("RANK", "WORLD_SIZE")) for rank in ("2", "-1")),
        *(({**SLURM, "SLURM_PROCID": rank}, of_slurm[:2]) for rank in ("4", "-1")),
    ]
    rank_info.bad_environments_refused(ranks, cases)


@exercise("phase1/setup_distributed", points=1)
def test_two_ranks_form_a_group(ranks):
    """After setup_distributed, two ranks are a gloo group, and both have the CPU as a device."""
    group.group_of_every_rank(ranks, 2)


@exercise("phase1/setup_distributed", points=1)
def test_one_rank_forms_a_group(ranks):
    """setup_distributed starts a group for a single rank too."""
    group.group_of_every_rank(ranks, 1)


@exercise("phase1/setup_distributed", points=1)
def test_setup_waits_for_every_rank(ranks):
    """Rank 2 of 3 is late: the others wait, even with a backend that connects lazily, like nccl."""
    group.setup_waits(ranks)


@exercise("phase1/setup_distributed", points=1)
def test_backend_and_timeout_are_used(ranks):
    """A given backend and a timeout of 7 s are used, and the default timeout is 60 s."""
    group.backend_and_timeout_used(ranks, seconds=7)


@exercise("phase1/setup_distributed", points=1)
def test_every_rank_uses_its_own_gpu(ranks):
    """On a machine with GPUs, simulated here, local rank 3 uses GPU 3 and nccl."""
    group.own_gpu_used(ranks, local_rank=3)


@exercise("phase1/cleanup_distributed", points=1)
def test_cleanup_destroys_the_group(ranks):
    """After cleanup_distributed, no rank has a process group."""
    group.group_destroyed(ranks)


@exercise("phase1/cleanup_distributed", points=1)
def test_cleanup_without_a_group_does_nothing(ranks):
    """cleanup_distributed does nothing if there is no group, or no longer one."""
    group.nothing_without_group(ranks)
