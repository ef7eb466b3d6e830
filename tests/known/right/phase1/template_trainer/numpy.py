"""Phase 1, second file. Gather everything, then let numpy do the mean."""

import json

import numpy as np


def setup_distributed(
    info: RankInfo, backend: str | None = None, timeout: timedelta = timedelta(seconds=60)
) -> torch.device:
    if torch.cuda.is_available():
        device = torch.device(f"cuda:{info.local_rank}")
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu", info.local_rank)
    if backend is None:
        backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(
        backend,
        f"tcp://{info.master_addr}:{info.master_port}",
        timeout,
        info.world_size,
        info.rank,
    )
    # Everybody hears from everybody, or nobody goes on.
    token = torch.tensor([info.rank], device=device if backend == "nccl" else "cpu")
    heard = [torch.full_like(token, -1) for _ in range(info.world_size)]
    dist.all_gather(heard, token)
    if [int(t) for t in heard] != list(range(info.world_size)):
        raise RuntimeError("the group is not what the launcher said")
    return device


def _comm_device() -> torch.device:
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _gather(row: np.ndarray) -> np.ndarray:
    """Every rank's row, stacked: (N, len(row)), the same on every rank."""
    mine = torch.from_numpy(np.ascontiguousarray(row)).to(_comm_device())
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    return np.stack([r.cpu().numpy() for r in rows])


def _raw(tensor: Tensor) -> np.ndarray:
    """A tensor's bytes; numpy knows no bfloat16, but bytes it knows."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _from_raw(raw: np.ndarray, dtype: torch.dtype, shape) -> Tensor:
    tensor = torch.empty(tuple(shape), dtype=dtype)
    _raw(tensor)[:] = raw
    return tensor


@torch.no_grad()
def broadcast_model(model: nn.Module, src: int = 0) -> None:
    tensors = [*model.parameters(), *model.buffers()]
    if not tensors:
        return
    parts = [_raw(t) for t in tensors]
    everything = torch.from_numpy(np.concatenate(parts)).to(_comm_device())
    dist.broadcast(everything, src)
    blob = everything.cpu().numpy()
    ends = np.cumsum([p.size for p in parts])
    for tensor, part in zip(tensors, np.split(blob, ends[:-1])):
        tensor.copy_(_from_raw(part, tensor.dtype, tensor.shape))


@torch.no_grad()
def average_gradients(model: nn.Module) -> None:
    wanted = [p for p in model.parameters() if p.requires_grad]
    if not wanted:
        return
    flat = np.concatenate(
        [
            np.zeros(p.numel(), dtype=complex if p.is_complex() else float)
            if p.grad is None
            else p.grad.to(torch.promote_types(p.dtype, torch.float64)).cpu().numpy().ravel()
            for p in wanted
        ]
    )
    mean = _gather(flat).mean(axis=0)
    ends = np.cumsum([p.numel() for p in wanted])
    for p, values in zip(wanted, np.split(mean, ends[:-1])):
        values = np.ascontiguousarray(values if p.is_complex() else values.real)
        p.grad = torch.from_numpy(values).view(p.shape).to(p.device, p.dtype)


def _device(model: nn.Module) -> torch.device:
    for tensor in model.parameters():
        return tensor.device
    return torch.device("cpu")


def evaluate(model: nn.Module, loader: DataLoader, loss_fn: LossFunction) -> dict[str, Any]:
    device = _device(model)
    modules = list(model.modules())
    modes = np.array([m.training for m in modules])
    sums = np.zeros(3)
    model.eval()
    try:
        with torch.no_grad():
            for inputs, targets in loader:
                outputs = model(inputs.to(device))
                loss = loss_fn(outputs, targets.to(device)).item()
                guess = outputs.float().cpu().numpy().argmax(axis=1)
                n = len(targets)
                sums += loss * n, np.count_nonzero(guess == targets.cpu().numpy()), n
    finally:
        for module, mode in zip(modules, modes.tolist()):
            module.training = mode
    per_rank = _gather(sums)
    loss, right, samples = per_rank.sum(axis=0)
    some = max(samples, 1.0)
    return {
        "loss": float(loss / some),
        "accuracy": float(right / some),
        "samples": int(samples),
        "samples_per_rank": per_rank[:, 2].astype(int).tolist(),
    }


# A checkpoint is an .npz (whatever it is called): each tensor's bytes as an array, and one array
# with JSON that says where they belong. numpy reads it with allow_pickle=False, so there is no
# pickle in it at all.


def _pack(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, Tensor):
        name = f"t{len(arrays)}"
        arrays[name] = _raw(value)
        return ["tensor", name, str(value.dtype).removeprefix("torch."), list(value.shape)]
    if isinstance(value, dict):
        return ["dict", [[_pack(k, arrays), _pack(v, arrays)] for k, v in value.items()]]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [_pack(v, arrays) for v in value]]
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["plain", value]
    raise TypeError(f"cannot put a {type(value).__name__} into a checkpoint")


def _unpack(node: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    kind, content, *more = node
    if kind == "tensor":
        return _from_raw(arrays[content], getattr(torch, more[0]), more[1])
    if kind == "dict":
        return {_unpack(k, arrays): _unpack(v, arrays) for k, v in content}
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](_unpack(v, arrays) for v in content)
    if kind == "plain":
        return content
    raise ValueError(f"unknown kind {kind!r} in checkpoint")


def save_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer, epoch: int) -> None:
    if dist.get_rank() == 0:
        arrays: dict[str, np.ndarray] = {}
        tree = _pack(
            {
                "model": dict(model.state_dict()),
                "optimizer": optimizer.state_dict(),
                "epoch": int(epoch),
            },
            arrays,
        )
        arrays["tree"] = np.frombuffer(json.dumps(tree).encode(), dtype=np.uint8)
        beside = os.fspath(path) + f".{os.getpid()}.tmp"
        try:
            with open(beside, "wb") as file:
                np.savez(file, **arrays)
                file.flush()
                os.fsync(file.fileno())
            os.rename(beside, path)
        except BaseException:
            if os.path.exists(beside):
                os.remove(beside)
            raise
    _gather(np.zeros(1))  # all here, so the file is too


def load_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer) -> int:
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
        content = _unpack(json.loads(arrays["tree"].tobytes()), arrays)
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    return content["epoch"]
