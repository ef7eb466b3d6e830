"""Components: buckets of one dtype, and a file that appears complete or not at all."""

import contextlib
import functools
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import field
from itertools import chain
from typing import BinaryIO


# --------------------------------------------------------------------------- buckets


@dataclass
class Bucket:
    """Tensors of one dtype and device that travel as one flat message."""

    tensors: list[Tensor] = field(default_factory=list)
    flat: Tensor | None = None
    work: dist.Work | None = None

    def pack(self, dtype: torch.dtype) -> Tensor:
        self.flat = torch.cat([tensor.reshape(-1).to(dtype) for tensor in self.tensors])
        return self.flat

    def unpack(self) -> Iterator[tuple[Tensor, Tensor]]:
        assert self.flat is not None
        sizes = [tensor.numel() for tensor in self.tensors]
        for tensor, part in zip(self.tensors, self.flat.split(sizes)):
            yield tensor, part.view(tensor.shape)

    def finish(self) -> None:
        assert self.work is not None
        self.work.wait()
        self.work = None


class BucketPlan:
    """Groups tensors by dtype and device, in an order that is the same on every rank."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        groups: dict[tuple[torch.dtype, torch.device], Bucket] = defaultdict(Bucket)
        for tensor in tensors:
            groups[tensor.dtype, tensor.device].tensors.append(tensor)
        self.buckets = list(groups.values())

    @contextlib.contextmanager
    def in_flight(self, launch: Callable[[Bucket], dist.Work]) -> Iterator[None]:
        """Start all messages on entry, wait for all of them on exit."""
        for bucket in self.buckets:
            bucket.work = launch(bucket)
        yield
        for bucket in self.buckets:
            bucket.finish()


def broadcast_model(model: nn.Module, src: int = 0) -> None:
    with torch.no_grad():
        plan = BucketPlan(tensor.detach() for tensor in chain(model.parameters(), model.buffers()))

        def launch(bucket: Bucket) -> dist.Work:
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket.tensors])
            bucket.flat = flat
            return dist.broadcast(flat.view(torch.uint8), src=src, async_op=True)

        with plan.in_flight(launch):
            pass
        for bucket in plan.buckets:
            for mine, theirs in bucket.unpack():
                mine.copy_(theirs)


def average_gradients(model: nn.Module) -> None:
    world = dist.get_world_size()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trainable:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        plan = BucketPlan(parameter.grad for parameter in trainable)

        def launch(bucket: Bucket) -> dist.Work:
            dtype = torch.promote_types(bucket.tensors[0].dtype, torch.float32)
            return dist.all_reduce(bucket.pack(dtype), op=dist.ReduceOp.SUM, async_op=True)

        with plan.in_flight(launch):
            pass
        for bucket in plan.buckets:
            for gradient, total in bucket.unpack():
                gradient.copy_(total / world)


# --------------------------------------------------------------------------- checkpoints


class AtomicFile:
    """A file that appears under its name complete, or not at all."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __enter__(self) -> BinaryIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, self._temporary = tempfile.mkstemp(
            prefix=f".{self.path.name}.", suffix=".partial", dir=self.path.parent
        )
        self._file = os.fdopen(handle, "wb")
        return self._file

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
            if kind is None:
                os.replace(self._temporary, self.path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary)


def on_rank_zero(action: Callable[..., None]) -> Callable[..., None]:
    """Run on rank 0 only; every rank returns when it is done, and raises if it went wrong."""

    @functools.wraps(action)
    def everywhere(*args: Any, **kwargs: Any) -> None:
        problem: Exception | None = None
        if dist.get_rank() == 0:
            try:
                action(*args, **kwargs)
            except Exception as error:  # told to the others, then raised below
                problem = error
        outcome = [None if problem is None else f"{type(problem).__name__}: {problem}"]
        dist.broadcast_object_list(outcome, src=0)
        if problem is not None:
            raise problem
        if outcome[0] is not None:
            raise RuntimeError(f"rank 0 could not do its part: {outcome[0]}")

    return everywhere


@on_rank_zero
def save_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer, epoch: int) -> None:
    with AtomicFile(path) as file:
        torch.save(
            {
                "format": 1,
                "epoch": int(epoch),
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
            },
            file,
        )


def load_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer) -> int:
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    return checkpoint["epoch"]
