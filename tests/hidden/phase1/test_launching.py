"""Reading a process's rank from the environment variables of its launcher."""

from gradsync.testing import exercise
from support.promises import rank_info

TORCHRUN = rank_info.TORCHRUN
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "6",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_NODELIST": "node[01-04,07],big1",
}
ALL_OF_SLURM = {  # the eighth of 12 tasks, two on each node
    **SLURM,
    "SLURM_PROCID": "7",
    "SLURM_NTASKS": "12",
    "SLURM_JOB_ID": "4711",
    "SLURM_NNODES": "6",
    "SLURM_NODEID": "3",
    "SLURM_NTASKS_PER_NODE": "2",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.5",
}


@exercise("phase1/read_rank_info", points=1.5)
def test_torchrun_variables_have_priority(ranks):
    """torchrun's variables are read, even if Slurm's are set, and the others have defaults."""
    fields = rank_info.FIELDS
    few = {"RANK": "1", "WORLD_SIZE": "2"}
    cases = [
        (TORCHRUN, fields),
        ({**SLURM, **TORCHRUN}, fields),
        (few, [1, 2, 0, "127.0.0.1", 29500]),
    ]
    rank_info.fields_read(ranks, cases)


@exercise("phase1/read_rank_info", points=1.5)
def test_slurm_variables_are_read(ranks):
    """Slurm's variables are read if torchrun's are not set, and MASTER_* if they are set."""
    named = {**SLURM, "MASTER_ADDR": "login2", "MASTER_PORT": "4000"}
    few = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "solo"}
    least = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
    cases = [
        (ALL_OF_SLURM, [7, 12, 1, "node01", 29500]),
        (named, [3, 6, 1, "login2", 4000]),
        (few, [0, 1, 0, "solo", 29500]),
        (least, [1, 2, 0, "127.0.0.1", 29500]),
        ({**SLURM, "LOCAL_RANK": "5"}, [3, 6, 1, "node01", 29500]),
    ]
    rank_info.fields_read(ranks, cases)


@exercise("phase1/read_rank_info", points=2)
def test_the_master_is_the_first_host_of_the_node_list(ranks, rng):
    """Under Slurm, the master is the first host of the node list, with brackets expanded."""
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
    rank_info.first_hosts_read(ranks, SLURM, first_hosts)


@exercise("phase1/read_rank_info", points=0.5)
def test_without_a_launcher_there_is_a_single_process(ranks):
    """Without a launcher's variables, the process is rank 0 of 1."""
    allocated = {"SLURM_JOB_NODELIST": SLURM["SLURM_JOB_NODELIST"]}
    lone = [{name: TORCHRUN[name]} for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")]
    rank_info.alone_without_launcher(ranks, [allocated, *lone])


@exercise("phase1/read_rank_info", points=0.5)
def test_only_the_argument_is_read(ranks):
    """read_rank_info only reads its argument: it neither reads nor changes os.environ."""
    few, fewer = {"RANK": "0", "WORLD_SIZE": "2"}, {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
    rank_info.only_the_argument_read(ranks, [few, SLURM, fewer, {}, {"RANK": "0"}])


@exercise("phase1/read_rank_info", points=1)
def test_bad_environments_raise_an_error_with_the_name(ranks):
    """A missing partner variable, a non-integer and an impossible rank raise a ValueError."""
    cases = [
        ({"RANK": "0"}, ("WORLD_SIZE", "RANK")),
        ({"WORLD_SIZE": "2"}, ("RANK", "WORLD_SIZE")),
        ({"SLURM_PROCID": "0"}, ("SLURM_NTASKS", "SLURM_PROCID")),
        ({"SLURM_NTASKS": "4"}, ("SLURM_PROCID", "SLURM_NTASKS")),
        ({**SLURM, "RANK": "0"}, ("WORLD_SIZE", "RANK")),
        ({**SLURM, "WORLD_SIZE": "6"}, ("RANK", "WORLD_SIZE")),
        ({**TORCHRUN, "RANK": "one"}, ("RANK",)),
        ({**TORCHRUN, "RANK": "1.5"}, ("RANK",)),
        ({**TORCHRUN, "WORLD_SIZE": "8.5"}, ("WORLD_SIZE",)),
        ({**TORCHRUN, "LOCAL_RANK": ""}, ("LOCAL_RANK",)),
        ({**TORCHRUN, "MASTER_PORT": "http"}, ("MASTER_PORT",)),
        ({**TORCHRUN, "RANK": "8"}, ("RANK", "WORLD_SIZE")),
        ({**TORCHRUN, "RANK": "-1"}, ("RANK", "WORLD_SIZE")),
        ({**SLURM, "SLURM_PROCID": "6"}, ("SLURM_PROCID", "SLURM_NTASKS")),
        ({**SLURM, "SLURM_PROCID": "-1"}, ("SLURM_PROCID", "SLURM_NTASKS")),
        ({**SLURM, "SLURM_PROCID": "one"}, ("SLURM_PROCID",)),
        ({**SLURM, "SLURM_LOCALID": "one"}, ("SLURM_LOCALID",)),
        ({**SLURM, "MASTER_PORT": "http"}, ("MASTER_PORT",)),
        ({**SLURM, "SLURM_NTASKS": "many"}, ("SLURM_NTASKS",)),
    ]
    rank_info.bad_environments_refused(ranks, cases)
