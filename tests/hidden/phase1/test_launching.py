"""Reading a process's rank from the environment variables of its launcher."""

import os

from gradsync.testing import check, exercise, raise_mistake
from gradsync.text import listed
from support.probes.rank_infos import answer_to, probe_rank_info
from support.rules.launching import string_for_a_number

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
MISLEADING = {  # in the process's own environment, which must not be read
    "RANK": "6",
    "WORLD_SIZE": "7",
    "LOCAL_RANK": "5",
    "MASTER_ADDR": "10.0.0.99",
    "MASTER_PORT": "1",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "9",
    "SLURM_LOCALID": "4",
    "SLURM_JOB_NODELIST": "other[5-8]",
}


def changed(before, after):
    """Return the variables whose value was changed, added or removed."""
    return sorted({name for name, _ in {*before.items()} ^ {*after.items()}})


def read_rank_infos(ranks, environs):
    [answers] = ranks(probe_rank_info, 1, process_group=False, environs=environs)
    return answers


def shown(environ):
    return " ".join(f"{name}={value}" for name, value in environ.items()) or "no variables"


def check_rank_info(environ, answer):
    """Check that an answer, unless it is an error, is a RankInfo."""
    check(
        not (isinstance(answer, dict) and "strange" in answer),
        "wrong-signature",
        f"With {shown(environ)}, read_rank_info {outcome(answer)}. It must return an object of "
        "the class RankInfo, which is defined at the top of the file, with its five fields.",
        guide=GUIDE,
    )


def check_given(environ, answer, wanted):
    check_rank_info(environ, answer)
    check(
        not isinstance(answer, dict),
        "launcher-not-read",
        f"With {shown(environ)}, read_rank_info {outcome(answer)}. This environment is valid: "
        "variables that are not set have a default.",
        guide=GUIDE,
    )
    raise_mistake(string_for_a_number(shown(environ), answer))
    code, what = "launcher-not-read", "the rank, world size and local rank that the launcher gives"
    if {"RANK", "SLURM_PROCID"} <= set(environ):
        what += " (torchrun's variables have priority)"
    if isinstance(answer, list) and answer[:3] == wanted[:3]:
        code, what = "wrong-master", "the address and port at which the ranks meet"
        if not {"RANK", "SLURM_PROCID"} & set(environ):
            what += " (a single process uses the defaults)"
    check(
        answer == wanted,
        code,
        f"With {shown(environ)}, read_rank_info {outcome(answer)}. It must return {what}.",
        guide=GUIDE,
    )


def outcome(answer):
    """Describe the answer to an environment, as the end of "read_rank_info ..."."""
    if not answer:
        return f"returns {answer} instead of a RankInfo"
    if isinstance(answer, dict):
        if "strange" in answer:
            return f"returns a {answer['strange']} instead of a RankInfo"
        return f"raises {answer['error']}: {answer['text']} (at {answer['where']})"
    rank, world_size, local_rank, address, port = answer
    return (
        f"returns rank {rank} of {world_size}, local rank {local_rank}, master {address!r}:{port!r}"
    )


@exercise("phase1/read_rank_info", points=1.5)
def test_torchrun_variables_have_priority(ranks):
    """torchrun's variables are read, even if Slurm's are set, and the others have defaults."""
    few = {"RANK": "1", "WORLD_SIZE": "2"}
    environs = [TORCHRUN, {**SLURM, **TORCHRUN}, few]

    plain, both, defaults = read_rank_infos(ranks, environs)

    check_given(environs[0], plain, [5, 8, 1, "10.0.0.7", 12345])
    check_given(environs[1], both, [5, 8, 1, "10.0.0.7", 12345])
    check_given(few, defaults, [1, 2, 0, "127.0.0.1", 29500])


@exercise("phase1/read_rank_info", points=1.5)
def test_slurm_variables_are_read(ranks):
    """Slurm's variables are read if torchrun's are not set, and MASTER_* if they are set."""
    named = {**SLURM, "MASTER_ADDR": "login2", "MASTER_PORT": "4000"}
    few = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "solo"}
    least = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
    left_over = {**SLURM, "LOCAL_RANK": "5"}
    environs = [ALL_OF_SLURM, named, few, least, left_over]

    plain, given, defaults, alone, beside = read_rank_infos(ranks, environs)

    check_given(ALL_OF_SLURM, plain, [7, 12, 1, "node01", 29500])
    check_given(named, given, [3, 6, 1, "login2", 4000])
    check_given(few, defaults, [0, 1, 0, "solo", 29500])
    check_given(least, alone, [1, 2, 0, "127.0.0.1", 29500])
    check_given(left_over, beside, [3, 6, 1, "node01", 29500])


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
    environs = [{**SLURM, "SLURM_JOB_NODELIST": nodelist} for nodelist in first_hosts]

    answers = read_rank_infos(ranks, environs)

    for environ, answer, host in zip(environs, answers, first_hosts.values(), strict=True):
        check_given(environ, answer, [3, 6, 1, host, 29500])


@exercise("phase1/read_rank_info", points=0.5)
def test_without_a_launcher_there_is_a_single_process(ranks):
    """Without a launcher's variables, the process is rank 0 of 1."""
    allocated = {"SLURM_JOB_NODELIST": SLURM["SLURM_JOB_NODELIST"]}
    lone = [{name: TORCHRUN[name]} for name in ("LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")]
    environs = [{}, allocated, TORCHRUN, SLURM, *lone]

    answer, waiting, *others = read_rank_infos(ranks, environs)

    check_given({}, answer, [0, 1, 0, "127.0.0.1", 29500])
    check_given(allocated, waiting, [0, 1, 0, "127.0.0.1", 29500])
    check(
        any(other != answer for other in others[:2]),
        "launcher-not-read",
        f"read_rank_info {outcome(answer)} with no variables set, and the same under torchrun "
        "and under Slurm. It does not read its argument.",
        guide=GUIDE,
    )
    for environ, other in zip(lone, others[2:], strict=True):
        check(
            isinstance(other, list) and other[:2] == [0, 1],
            "launcher-not-read",
            f"With {shown(environ)} and no other variable, read_rank_info {outcome(other)}. It "
            "must be rank 0 of 1: only RANK or WORLD_SIZE show that torchrun started the process, "
            "and only SLURM_PROCID or SLURM_NTASKS show that Slurm did.",
            guide=GUIDE,
        )


@exercise("phase1/read_rank_info", points=0.5)
def test_only_the_argument_is_read(ranks):
    """read_rank_info only reads its argument: it neither reads nor changes os.environ."""

    def probe(trainer, given):
        seen = []
        for environ in given:
            asked, runs = dict(environ), []
            for own in ({}, MISLEADING):
                for name in MISLEADING:
                    os.environ.pop(name, None)
                os.environ.update(own)
                before = dict(os.environ)
                runs.append([answer_to(trainer, asked), changed(before, os.environ)])
            seen.append([runs, changed(environ, asked)])
        return seen

    few, fewer = {"RANK": "0", "WORLD_SIZE": "2"}, {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
    given = [few, SLURM, fewer, {}, {"RANK": "0"}]
    [seen] = ranks(probe, 1, process_group=False, given=given)

    first, second = (runs[0][0] for runs, _ in seen[:2])
    check_rank_info(few, first)
    check(
        first != second and (isinstance(first, list) or isinstance(second, list)),
        "launcher-not-read",
        f"With {shown(few)}, read_rank_info {outcome(first)}, and with {shown(SLURM)} it "
        f"{outcome(second)}. It does not read its argument.",
        guide=GUIDE,
    )
    for environ, (runs, written) in zip(given, seen, strict=True):
        (clean, outside), (answer, outside_too) = runs
        check(
            same(answer, clean),
            "launcher-not-read",
            f"With {shown(environ)}, read_rank_info {outcome(clean)}, but with other variables "
            f"in os.environ it {outcome(answer)}. It must read only its argument.",
            guide=GUIDE,
        )
        changes = {"its argument": written, "os.environ": outside or outside_too}
        for place, names in changes.items():
            check(
                not names,
                "launcher-not-read",
                f"read_rank_info changes {', '.join(names)} in {place}. It must not change any "
                "variables.",
                guide=GUIDE,
            )


def same(answer, other):
    """Return whether two answers are equal; two errors are equal if their types are equal."""
    if isinstance(answer, dict) and isinstance(other, dict):
        return answer.get("error") == other.get("error")
    return answer == other


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
    good, *answers = read_rank_infos(ranks, [TORCHRUN, *(environ for environ, _ in cases)])

    check_rank_info(TORCHRUN, good)
    check(
        isinstance(good, list),
        "launcher-not-read",
        f"With {shown(TORCHRUN)}, which is valid, read_rank_info {outcome(good)}.",
        guide=GUIDE,
    )
    for (environ, names), answer in zip(cases, answers, strict=True):
        refused = isinstance(answer, dict) and answer["refused"]
        check(
            refused and any(name in answer["text"] for name in names),
            "bad-environment-accepted",
            f"With {shown(environ)}, read_rank_info {outcome(answer)}. It must raise a "
            f"ValueError that names {listed(names, 'or')}.",
            guide=GUIDE,
        )
