"""Phase 1: the trainer.

Gradients travel the way a ring does it: a reduce-scatter leaves each rank with the sum of one
slice, it divides its slice, and an all-gather puts the slices together again.

Checkpoints are laid out like safetensors: eight bytes with the length of a JSON header, the header,
and then the raw bytes of the tensors. There is nothing in such a file that could run.
"""

import contextlib
import json
import struct
import sys


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def broadcast_model(model: nn.Module, src: int = 0) -> None:
    for tensor in _tensors(model):
        data = tensor.detach()
        if data.numel() == 0:
            continue
        # Bytes, so that gloo need not know the type: it has none of int16, for one.
        wire = torch.empty(data.numel() * data.element_size(), dtype=torch.uint8, device=data.device)
        if dist.get_rank() == src:
            wire.copy_(data.reshape(-1).view(torch.uint8))
        work = dist.broadcast(wire, src=src, async_op=True)
        work.wait(timedelta(minutes=5))
        if dist.get_rank() != src:
            # Other memory behind the same object. Bit for bit, whatever the strides were.
            tensor.data = wire.view(data.dtype).view(data.shape)


def average_gradients(model: nn.Module) -> None:
    world = dist.get_world_size()
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        return
    # complex gradients go as pairs of reals
    pieces = []
    for p in parameters:
        grad = torch.zeros_like(p, requires_grad=False) if p.grad is None else p.grad.detach()
        real = torch.view_as_real(grad) if grad.is_complex() else grad
        pieces.append(real.to(torch.float64).reshape(-1))
    total = sum(piece.numel() for piece in pieces)
    slice_size = -(-total // world)
    flat = torch.zeros(slice_size * world, dtype=torch.float64, device=parameters[0].device)
    torch.cat(pieces, out=flat[:total])

    mine = torch.empty(slice_size, dtype=torch.float64, device=flat.device)
    if slice_size:
        dist.reduce_scatter_single(mine, flat, op=dist.ReduceOp.SUM)
        mine /= world
        dist.all_gather_single(flat, mine)

    offset = 0
    for p, piece in zip(parameters, pieces):
        values = flat[offset : offset + piece.numel()]
        offset += piece.numel()
        if p.is_complex():
            new = torch.view_as_complex(values.view(*p.shape, 2)).to(p.dtype)
        else:
            new = values.view(p.shape).to(p.dtype)
        if p.grad is None:
            p.grad = new.clone()
        else:
            p.grad.data.copy_(new)


def _device(model: nn.Module) -> torch.device:
    tensors = _tensors(model)
    return tensors[0].device if tensors else torch.device("cpu")


def _sum_over_ranks(values: list[float], device: torch.device) -> list[float]:
    mine = torch.tensor(values, dtype=torch.float64, device=device)
    table = torch.empty(dist.get_world_size() * len(values), dtype=torch.float64, device=device)
    dist.all_gather_single(table, mine)
    return table.view(-1, len(values)).sum(dim=0).tolist()


class _LossRecorder:
    """A loss function that remembers its sum over samples."""

    def __init__(self, loss_fn: LossFunction) -> None:
        self.loss_fn, self.total, self.samples = loss_fn, 0.0, 0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = self.loss_fn(outputs, targets)
        self.total += loss.item() * len(targets)
        self.samples += len(targets)
        return loss


def train_step(
    model: nn.Module, batch: Batch, loss_fn: LossFunction, optimizer: Optimizer
) -> float:
    device = _device(model)
    inputs, targets = batch
    optimizer.zero_grad()
    model.zero_grad()
    loss = loss_fn(model(inputs.to(device)), targets.to(device))
    loss.backward()
    average_gradients(model)
    optimizer.step()
    (total,) = _sum_over_ranks([loss.item()], device)
    return total / dist.get_world_size()


def train_epoch(
    model: nn.Module, loader: DataLoader, loss_fn: LossFunction, optimizer: Optimizer, epoch: int
) -> float:
    batch_sampler = getattr(loader, "batch_sampler", None)
    sampler = getattr(batch_sampler, "sampler", None) or getattr(loader, "sampler", None)
    if hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)
    model.train()
    recorder = _LossRecorder(loss_fn)
    for batch in loader:
        train_step(model, batch, recorder, optimizer)
    total, samples = _sum_over_ranks([recorder.total, recorder.samples], _device(model))
    return total / samples if samples else 0.0


def _describe(value: Any, blobs: list[bytes]) -> Any:
    """JSON for anything that a state dict holds; tensors leave their bytes in `blobs`."""
    if isinstance(value, Tensor):
        blob = bytes(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        start = sum(map(len, blobs))
        blobs.append(blob)
        return {
            "dtype": str(value.dtype).split(".")[1],
            "shape": list(value.shape),
            "data_offsets": [start, start + len(blob)],
        }
    if isinstance(value, dict):
        return {"items": [[_describe(k, blobs), _describe(v, blobs)] for k, v in value.items()]}
    if isinstance(value, (tuple, list)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_describe(v, blobs) for v in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a checkpoint has no place for {type(value).__name__}")


def _restore(node: Any, blob: memoryview) -> Any:
    if not isinstance(node, dict):
        return node
    if "items" in node:
        return {_restore(k, blob): _restore(v, blob) for k, v in node["items"]}
    if "tuple" in node:
        return tuple(_restore(v, blob) for v in node["tuple"])
    if "list" in node:
        return [_restore(v, blob) for v in node["list"]]
    dtype = getattr(torch, node["dtype"])
    start, end = node["data_offsets"]
    if start == end:
        return torch.empty(node["shape"], dtype=dtype)
    raw = torch.frombuffer(bytearray(blob[start:end]), dtype=torch.uint8)
    return raw.view(dtype).view(node["shape"])


def save_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer, epoch: int) -> None:
    if dist.get_rank() == 0:
        blobs: list[bytes] = []
        header = {
            "byteorder": sys.byteorder,
            "epoch": int(epoch),
            "model": _describe(dict(model.state_dict()), blobs),
            "optimizer": _describe(optimizer.state_dict(), blobs),
        }
        text = json.dumps(header).encode("utf-8")
        temporary = os.path.join(os.path.dirname(os.path.abspath(path)), f".tmp-{os.path.basename(path)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(struct.pack("<Q", len(text)))
                file.write(text)
                file.writelines(blobs)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    dist.barrier(async_op=True).wait()


def load_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer) -> int:
    content = memoryview(Path(path).read_bytes())
    if len(content) < 8:
        raise ValueError(f"{path} is too short for a checkpoint")
    (length,) = struct.unpack_from("<Q", content)
    if length > len(content) - 8:
        raise ValueError(f"{path} is no checkpoint")
    header = json.loads(bytes(content[8 : 8 + length]))
    if header["byteorder"] != sys.byteorder:
        raise ValueError(f"{path} was written on a machine of another byte order")
    blob = content[8 + length :]
    model.load_state_dict(_restore(header["model"], blob))
    optimizer.load_state_dict(_restore(header["optimizer"], blob))
    return header["epoch"]
