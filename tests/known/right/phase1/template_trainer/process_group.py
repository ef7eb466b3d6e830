"""Phase 1: what DistributedDataParallel does, one level below `torch.distributed`'s functions.

All collectives are methods of the `ProcessGroup` object.
"""

import functools
from contextlib import suppress
from typing import Callable, Iterable

import torch.distributed.distributed_c10d as c10d
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


# -- the group -------------------------------------------------------------------------------------


class Group:
    """The few collectives that are needed, as methods of the default process group."""

    def __init__(self) -> None:
        self.pg = c10d._get_default_group()
        self.rank: int = self.pg.rank()
        self.size: int = self.pg.size()

    def sum_(self, tensor: Tensor) -> Tensor:
        options = c10d.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM
        self.pg.allreduce([tensor], options).wait()
        return tensor

    def from_(self, src: int, tensor: Tensor) -> Tensor:
        options = c10d.BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        self.pg.broadcast([tensor], options).wait()
        return tensor

    def meet(self) -> None:
        self.pg.barrier().wait()


def _buckets(tensors: Iterable[Tensor], limit: int = 1 << 20) -> Iterable[list[Tensor]]:
    """Neighbours of one dtype, up to `limit` elements together."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        full = sum(t.numel() for t in bucket) + tensor.numel() > limit
        if bucket and (full or bucket[0].dtype != tensor.dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def broadcast_model(model: nn.Module, src: int = 0) -> None:
    group = Group()
    with torch.no_grad():
        for bucket in _buckets([t.detach() for t in [*model.parameters(), *model.buffers()]]):
            flat = _flatten_dense_tensors([t.contiguous().view(-1) for t in bucket])
            if flat.numel() == 0:
                continue
            group.from_(src, flat.view(torch.uint8))
            if group.rank == src:
                continue
            for tensor, new in zip(bucket, flat.split([t.numel() for t in bucket])):
                tensor.copy_(new.view(tensor.shape))


def average_gradients(model: nn.Module) -> None:
    group = Group()
    trainable = [p for p in model.parameters() if p.requires_grad]
    for p in trainable:
        if p.grad is None:
            p.grad = torch.zeros_like(p, memory_format=torch.preserve_format)
    with torch.no_grad():
        for bucket in _buckets([p.grad for p in trainable]):
            wide = torch.promote_types(bucket[0].dtype, torch.float32)
            flat = _flatten_dense_tensors([g.to(wide).contiguous() for g in bucket])
            if flat.numel() == 0:
                continue
            flat = flat.div(group.size)
            group.sum_(torch.view_as_real(flat) if flat.is_complex() else flat)
            for gradient, mean in zip(bucket, _unflatten_dense_tensors(flat, bucket)):
                gradient.copy_(mean)


# -- checkpoints -----------------------------------------------------------------------------------


def then_meet(function: Callable) -> Callable:
    """Rank 0 does it, the others wait until it is done. (If it fails, it fails: no `finally`.)"""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        group = Group()
        if group.rank == 0:
            function(*args, **kwargs)
        group.meet()

    return wrapper


@then_meet
def save_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer, epoch: int) -> None:
    path = os.path.abspath(path)
    state = {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    folder, name = os.path.split(path)
    draft = os.path.join(folder, f".{name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        os.unlink(draft)
    if not _write_nameless(state, folder, draft):
        with open(draft, "wb") as file:
            torch.save(state, file)
    os.rename(draft, path)


def _write_nameless(state: dict[str, Any], folder: str, draft: str) -> bool:
    """Write to a file without a name, which a crash leaves nothing of, and name it when complete.

    Returns False where the system or the file system has no such thing.
    """
    try:
        where = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (AttributeError, OSError):
        return False
    try:
        descriptor = os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o644, dir_fd=where)
    except (AttributeError, OSError):
        os.close(where)
        return False
    try:
        with os.fdopen(descriptor, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
            try:
                # `src_dir_fd` only to have Python call linkat, which follows the link in /proc
                os.link(f"/proc/self/fd/{file.fileno()}", draft, src_dir_fd=where, follow_symlinks=True)
            except OSError:
                return False
    finally:
        os.close(where)
    return True


def load_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer) -> int:
    state = torch.load(os.fspath(path), map_location="cpu", weights_only=True)
    model.load_state_dict(state["state_dict"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]
