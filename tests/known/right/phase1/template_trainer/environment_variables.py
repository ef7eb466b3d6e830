"""Sets torchrun's variables itself and lets torch read them."""


def setup_distributed(info, backend=None, timeout=timedelta(seconds=60)):
    os.environ["MASTER_ADDR"] = info.master_addr
    os.environ["MASTER_PORT"] = str(info.master_port)
    os.environ["RANK"] = str(info.rank)
    os.environ["WORLD_SIZE"] = str(info.world_size)
    os.environ["LOCAL_RANK"] = str(info.local_rank)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device(f"cuda:{info.local_rank}")
        torch.cuda.set_device(info.local_rank)
    dist.init_process_group(backend or ("gloo" if device.type == "cpu" else "nccl"), timeout=timeout)
    dist.all_reduce(torch.zeros(1, device=device))
    return device


def cleanup_distributed():
    try:
        dist.destroy_process_group()
    except (AssertionError, RuntimeError, ValueError):
        pass
