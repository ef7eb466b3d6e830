"""What reading a process's rank from a launcher's environment variables promises.

A case is an environment, and the expected fields of the RankInfo or the variables to name.
"""

import os

from gradsync.testing import check, raise_mistake
from gradsync.text import listed
from support.probes.rank_infos import answer_to, probe_rank_info
from support.rules.launching import string_for_a_number

GUIDE = "Launching ranks"
TORCHRUN = {  # a valid environment
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "10.0.0.7",
    "MASTER_PORT": "12345",
}
FIELDS = [5, 8, 1, "10.0.0.7", 12345]  # that it gives
BESIDE_SLURM = {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "3", **TORCHRUN}
VALID = (TORCHRUN, BESIDE_SLURM)
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
    code, why = "launcher-not-read", ""
    if {"RANK", "SLURM_PROCID"} <= set(environ):
        why = ": torchrun's variables have priority"
    if isinstance(answer, list) and answer[:3] == wanted[:3]:
        code = "wrong-master"
    if not {"RANK", "SLURM_PROCID"} & set(environ):
        why = ": a single process uses the defaults"
    check(
        answer == wanted,
        code,
        f"With {shown(environ)}, read_rank_info {outcome(answer)}. It must return "
        f"{listed(differences(answer, wanted))}{why}.",
        guide=GUIDE,
    )


def differences(answer, wanted):
    """Describe the fields that the answer should have instead."""
    names = "rank", "world size", "local rank", "the address", "the port"
    own = answer if isinstance(answer, list) else [None] * len(wanted)
    parts = zip(names, own, wanted, strict=True)
    return [f"{name} {right!r}" for name, value, right in parts if value != right]


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


def fields_read(ranks, cases):
    """Check the five fields that each environment gives."""
    environs = [environ for environ, _ in cases]
    for (environ, wanted), answer in zip(cases, read_rank_infos(ranks, environs), strict=True):
        check_given(environ, answer, wanted)


def first_hosts_read(ranks, slurm, first_hosts):
    """Check the master under Slurm: the first host of each node list, with brackets expanded."""
    rank, size, local = (int(value) for value in list(slurm.values())[:3])
    cases = [
        ({**slurm, "SLURM_JOB_NODELIST": nodelist}, [rank, size, local, host, 29500])
        for nodelist, host in first_hosts.items()
    ]
    fields_read(ranks, cases)


def alone_without_launcher(ranks, lone):
    """Check that no variables, and each environment of `lone`, give rank 0 of 1."""
    answer, under, *others = read_rank_infos(ranks, [{}, TORCHRUN, *lone])

    check_given({}, answer, [0, 1, 0, "127.0.0.1", 29500])
    check(
        under != answer,
        "launcher-not-read",
        f"read_rank_info {outcome(answer)} with no variables set, and the same under torchrun. It "
        "does not read its argument.",
        guide=GUIDE,
    )
    for environ, other in zip(lone, others, strict=True):
        check(
            isinstance(other, list) and other[:2] == [0, 1],
            "launcher-not-read",
            f"With {shown(environ)} and no other variable, read_rank_info {outcome(other)}. It "
            "must be rank 0 of 1: only RANK or WORLD_SIZE show that torchrun started the process, "
            "and only SLURM_PROCID or SLURM_NTASKS show that Slurm did.",
            guide=GUIDE,
        )


def only_the_argument_read(ranks, given):
    """Check that neither os.environ nor the argument is changed, and os.environ is not read.

    The first two of the given environments are valid and different.
    """

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

    [seen] = ranks(probe, 1, process_group=False, given=given)

    first, second = (runs[0][0] for runs, _ in seen[:2])
    few, slurm = given[:2]
    check_rank_info(few, first)
    check(
        first != second and (isinstance(first, list) or isinstance(second, list)),
        "launcher-not-read",
        f"With {shown(few)}, read_rank_info {outcome(first)}, and with {shown(slurm)} it "
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


def bad_environments_refused(ranks, cases):
    """Check that each environment raises a ValueError that contains one of the names.

    An environment that is not refused may be the symptom of another mistake: variables that are not
    read are not checked. So valid environments come first then.
    """
    environs = [*VALID, *(environ for environ, _ in cases)]
    answers = read_rank_infos(ranks, environs)

    valid = list(zip(VALID, answers, strict=False))
    check_rank_info(*valid[0])
    check(
        isinstance(answers[0], list),
        "launcher-not-read",
        f"With {shown(TORCHRUN)}, which is valid, read_rank_info {outcome(answers[0])}.",
        guide=GUIDE,
    )
    for (environ, names), answer in zip(cases, answers[len(VALID) :], strict=True):
        refused = isinstance(answer, dict) and answer["refused"]
        named = refused and any(name in answer["text"] for name in names)
        for good, its_answer in valid * (not named):
            check_given(good, its_answer, FIELDS)
        check(
            named,
            "bad-environment-accepted",
            f"With {shown(environ)}, read_rank_info {outcome(answer)}. It must raise a "
            f"ValueError that names {listed(names, 'or')}.",
            guide=GUIDE,
        )
