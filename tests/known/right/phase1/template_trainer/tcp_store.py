"""Makes the store by hand, and counts in it who has come."""


def setup_distributed(info, backend=None, timeout=timedelta(seconds=60)):
    if backend is None:
        backend = "nccl" if torch.cuda.is_available() else "gloo"
    store = dist.TCPStore(
        info.master_addr, info.master_port, info.world_size, info.rank == 0, timeout=timeout
    )
    store.set(f"here/{info.rank}", "yes")
    store.wait([f"here/{rank}" for rank in range(info.world_size)], timeout)
    dist.init_process_group(
        backend, store=store, rank=info.rank, world_size=info.world_size, timeout=timeout
    )
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(info.local_rank)
    return torch.device("cuda", torch.cuda.current_device())
