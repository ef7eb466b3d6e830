"""Data-parallel training with explicit components.

Components
----------
``EnvironmentReader`` (one per launcher) -> ``RankInfo``
``Bucket``/``BucketPlan``                -> flat, asynchronous gradient averaging
``GlobalMean``                           -> sums and counts, divided once
``AtomicFile``                           -> whole-or-nothing writes
``Trainer``                              -> puts them in order
"""

import contextlib
import enum
import functools
import tempfile
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import field
from itertools import chain
from typing import BinaryIO, ClassVar

from torch.optim import SGD

DEFAULT_ADDR = "127.0.0.1"
DEFAULT_PORT = 29500


# --------------------------------------------------------------------------- environment


class HostList:
    """Parser for Slurm's compressed host lists; only the first host is expanded."""

    class State(enum.Enum):
        NAME = enum.auto()
        FIRST_ITEM = enum.auto()
        REST_OF_BRACKET = enum.auto()

    def __init__(self, text: str) -> None:
        self._text = text

    def first(self) -> str:
        state, out = self.State.NAME, []
        for char in self._text.strip():
            if state is self.State.NAME:
                if char == ",":
                    break
                if char == "[":
                    state = self.State.FIRST_ITEM
                else:
                    out.append(char)
            elif char == "]":
                state = self.State.NAME
            elif state is self.State.FIRST_ITEM:
                if char in "-,":
                    state = self.State.REST_OF_BRACKET
                else:
                    out.append(char)
        return "".join(out)


class EnvironmentReader(ABC):
    rank_name: ClassVar[str]
    world_name: ClassVar[str]
    local_name: ClassVar[str]

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ

    @property
    def present(self) -> bool:
        return self.rank_name in self.environ or self.world_name in self.environ

    def integer(self, name: str, default: int | None = None) -> int:
        if name not in self.environ:
            if default is None:
                raise ValueError(f"{name} is not set, although its partner is")
            return default
        text = self.environ[name]
        try:
            return int(text)
        except ValueError as error:
            raise ValueError(f"{name} has to be an integer, got {text!r}") from error

    @abstractmethod
    def default_master(self) -> str: ...

    def read(self) -> RankInfo:
        rank, world = self.integer(self.rank_name), self.integer(self.world_name)
        if world < 1:
            raise ValueError(f"{self.world_name}={world}: a world has at least one rank ({self.rank_name}={rank})")
        if rank not in range(world):
            raise ValueError(f"{self.rank_name}={rank} is not in a world of {self.world_name}={world}")
        return RankInfo(
            rank,
            world,
            self.integer(self.local_name, 0),
            self.environ.get("MASTER_ADDR") or self.default_master(),
            self.integer("MASTER_PORT", DEFAULT_PORT),
        )


class TorchrunReader(EnvironmentReader):
    rank_name, world_name, local_name = "RANK", "WORLD_SIZE", "LOCAL_RANK"

    def default_master(self) -> str:
        return DEFAULT_ADDR


class SlurmReader(EnvironmentReader):
    rank_name, world_name, local_name = "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"

    def default_master(self) -> str:
        return HostList(self.environ.get("SLURM_JOB_NODELIST", "")).first() or DEFAULT_ADDR


def read_rank_info(environ: Mapping[str, str]) -> RankInfo:
    for reader in (TorchrunReader(environ), SlurmReader(environ)):
        if reader.present:
            return reader.read()
    return RankInfo(0, 1, 0, DEFAULT_ADDR, DEFAULT_PORT)


# --------------------------------------------------------------------------- process group


def setup_distributed(
    info: RankInfo, backend: str | None = None, timeout: timedelta = timedelta(seconds=60)
) -> torch.device:
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", info.local_rank) if cuda else torch.device("cpu", 0)
    if cuda:
        torch.cuda.set_device(info.local_rank)
    dist.init_process_group(
        backend=backend if backend is not None else ("nccl" if cuda else "gloo"),
        init_method=f"tcp://{info.master_addr}:{info.master_port}",
        world_size=info.world_size,
        rank=info.rank,
        timeout=timeout,
    )
    on = [info.local_rank] if dist.get_backend() == "nccl" else None
    dist.barrier(device_ids=on)
    return device


def cleanup_distributed() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


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


# --------------------------------------------------------------------------- metrics


class GlobalMean:
    """Named sums over this rank's samples, reduced over all ranks at the very end."""

    def __init__(self, device: torch.device, *names: str) -> None:
        self._slot = {name: number for number, name in enumerate(names)}
        self._sums = torch.zeros(len(names), dtype=torch.float64, device=device)

    def add(self, **amounts: Tensor | float) -> None:
        for name, amount in amounts.items():
            self._sums[self._slot[name]] += amount

    def reduce(self) -> dict[str, float]:
        dist.all_reduce(self._sums)
        values = self._sums.tolist()
        return {name: values[slot] for name, slot in self._slot.items()}


def model_device(model: nn.Module) -> torch.device:
    for tensor in chain(model.parameters(), model.buffers()):
        return tensor.device
    return torch.device("cpu")


@contextlib.contextmanager
def modes_of(model: nn.Module, training: bool) -> Iterator[None]:
    """Put the whole model into a mode, and each module back into its own afterwards."""
    before = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, mode in before.items():
            module.training = mode


# --------------------------------------------------------------------------- training


@dataclass(frozen=True)
class LocalStep:
    loss: Tensor
    samples: int


class Trainer:
    def __init__(self, model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer) -> None:
        self.model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        self.device = model_device(model)

    def step(self, batch: Batch) -> LocalStep:
        inputs, targets = (part.to(self.device, non_blocking=True) for part in batch)
        self.optimizer.zero_grad(set_to_none=True)
        self.model.zero_grad(set_to_none=True)
        loss = self.loss_fn(self.model(inputs), targets)
        loss.backward()
        average_gradients(self.model)
        self.optimizer.step()
        return LocalStep(loss.detach(), targets.shape[0])

    def epoch(self, loader: DataLoader) -> float:
        mean = GlobalMean(self.device, "loss", "samples")
        self.model.train()
        for batch in loader:
            result = self.step(batch)
            mean.add(loss=result.loss.double() * result.samples, samples=result.samples)
        sums = mean.reduce()
        return sums["loss"] / sums["samples"] if sums["samples"] else 0.0


def train_step(
    model: nn.Module, batch: Batch, loss_fn: LossFunction, optimizer: Optimizer
) -> float:
    trainer = Trainer(model, loss_fn, optimizer)
    mean = GlobalMean(trainer.device, "loss", "ranks")
    mean.add(loss=trainer.step(batch).loss.double(), ranks=1)
    sums = mean.reduce()
    return sums["loss"] / sums["ranks"]


def announce_epoch(loader: DataLoader, epoch: int) -> None:
    """Tell whichever sampler the loader follows."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    listeners = (getattr(loader, "sampler", None), getattr(batch_sampler, "sampler", None), batch_sampler)
    told: set[int] = set()
    for listener in listeners:
        if callable(getattr(listener, "set_epoch", None)) and id(listener) not in told:
            told.add(id(listener))
            listener.set_epoch(epoch)


def train_epoch(
    model: nn.Module, loader: DataLoader, loss_fn: LossFunction, optimizer: Optimizer, epoch: int
) -> float:
    announce_epoch(loader, epoch)
    return Trainer(model, loss_fn, optimizer).epoch(loader)


def evaluate(model: nn.Module, loader: DataLoader, loss_fn: LossFunction) -> dict[str, Any]:
    device = model_device(model)
    mean = GlobalMean(device, "loss", "correct", "samples")
    with modes_of(model, training=False), torch.no_grad():
        for inputs, targets in loader:
            inputs, targets = inputs.to(device), targets.to(device)
            outputs = model(inputs)
            count = targets.shape[0]
            mean.add(
                loss=loss_fn(outputs, targets).double() * count,
                correct=(outputs.argmax(dim=1) == targets).sum(),
                samples=count,
            )
    sums = mean.reduce()
    samples = int(sums["samples"])
    correct = int(sums["correct"])
    return {
        "loss": sums["loss"] / samples if samples else 0.0,
        "accuracy": correct / samples if samples else 0.0,
        "samples": samples,
        "correct": correct,
    }


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


# --------------------------------------------------------------------------- all of it


@dataclass(frozen=True)
class EpochRecord:
    epoch: int
    train_loss: float
    val_loss: float
    val_accuracy: float

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def __str__(self) -> str:
        return (
            f"epoch {self.epoch:3d}  train loss {self.train_loss:.4f}  "
            f"val loss {self.val_loss:.4f}  val accuracy {self.val_accuracy:.2%}"
        )


def train(
    info: RankInfo,
    model: nn.Module,
    train_dataset: Dataset,
    val_dataset: Dataset,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    seed: int = 0,
) -> list[dict[str, Any]]:
    report: Callable[[object], None] = print if info.rank == 0 else lambda _: None
    broadcast_model(model)
    train_loader, val_loader = create_dataloaders(
        train_dataset, val_dataset, batch_size, world_size=info.world_size, rank=info.rank, seed=seed
    )
    optimizer, loss_fn = SGD(model.parameters(), lr=lr, momentum=0.9), nn.CrossEntropyLoss()
    records: list[EpochRecord] = []
    for epoch in range(epochs):
        train_loss = train_epoch(model, train_loader, loss_fn, optimizer, epoch)
        result = evaluate(model, val_loader, loss_fn)
        records.append(EpochRecord(epoch, train_loss, result["loss"], result["accuracy"]))
        report(records[-1])
    return [record.as_dict() for record in records]
