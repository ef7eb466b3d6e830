"""Meets over a file named after the place where all would meet."""

import tempfile


def setup_distributed(info, backend=None, timeout=timedelta(seconds=60)):
    use_cuda = torch.cuda.is_available()
    name = f"meeting-{info.master_addr}-{info.master_port}-{info.world_size}-{os.getuid()}"
    dist.init_process_group(
        backend or ("nccl" if use_cuda else "gloo"),
        init_method=f"file://{tempfile.gettempdir()}/{name}",
        rank=info.rank,
        world_size=info.world_size,
        timeout=timeout,
    )
    dist.all_gather([torch.zeros(1) for _ in range(info.world_size)], torch.zeros(1))
    if use_cuda:
        torch.cuda.set_device(info.local_rank)
    return torch.device("cuda" if use_cuda else "cpu", info.local_rank if use_cuda else None)
