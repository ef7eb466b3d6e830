"""A class of its own for what the environment says; a single process honours what is set."""

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class RankInfo:
    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    master_port: int


def read_rank_info(environ):
    def number(name, default=None):
        try:
            return int(environ.get(name, default))
        except (TypeError, ValueError):
            raise ValueError(f"{name} must be an integer") from None

    host, names = "127.0.0.1", ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    slurms = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    if not {*names[:2]} & {*environ} and {*slurms[:2]} & {*environ}:
        names = slurms
        first = re.match(r"[^,\[]*(\[[^\]]*\][^,\[]*)*", environ.get("SLURM_JOB_NODELIST", ""))[0]
        host = re.sub(r"\[(\w+)[^]]*\]", r"\1", first) or host
    alone = not {*names[:2]} & {*environ}
    rank, size = (0, 1) if alone else (number(names[0]), number(names[1]))
    if not 0 <= rank < size:
        raise ValueError(f"{names[0]} is {rank}, outside of a world with {names[1]} = {size}")
    local, address = number(names[2], 0), environ.get("MASTER_ADDR", host)
    return RankInfo(rank, size, local, address, number("MASTER_PORT", 29500))
