"""Half a set: the error names the variable that stands alone, not the one that is missing."""


def read_rank_info(environ):
    def integer(name, default=None):
        try:
            return int(environ.get(name, default))
        except ValueError:
            raise ValueError(f"what {name} holds is no integer") from None

    address, port = environ.get("MASTER_ADDR", "127.0.0.1"), integer("MASTER_PORT", 29500)
    torchrun = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    slurm = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    for rank_name, size_name, local_name in (torchrun, slurm):
        there = [name for name in (rank_name, size_name) if name in environ]
        if len(there) == 1:
            raise ValueError(f"{there[0]} is set alone")
        if there:
            rank, world_size = integer(rank_name), integer(size_name)
            if not 0 <= rank < world_size:
                raise ValueError(f"{size_name}={world_size} leaves no room for this rank, {rank}")
            if there[0] == "SLURM_PROCID" and "MASTER_ADDR" not in environ:
                address = _first_host(environ.get("SLURM_JOB_NODELIST", ""))
            return RankInfo(rank, world_size, integer(local_name, 0), address, port)
    return RankInfo(0, 1, 0, address, port)
