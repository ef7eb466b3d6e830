"""Phase 1, trainer. Every collective is a future; what comes after it is a callback."""

import contextlib
from collections.abc import Iterator

from torch.futures import Future


def characters_of_first_host(nodes: str) -> Iterator[str]:
    inside = skipping = False
    for c in nodes:
        if inside:
            if c == "]":
                inside = skipping = False
            elif c in ",-":
                skipping = True
            elif not skipping:
                yield c
        elif c == "[":
            inside = True
        elif c == ",":
            return
        else:
            yield c


def read_rank_info(environ: Mapping[str, str]) -> RankInfo:
    for prefix, names in {
        "": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        "SLURM_": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    }.items():
        rank_name, size_name, local_name = names
        if rank_name not in environ and size_name not in environ:
            continue
        values = {local_name: 0, "MASTER_PORT": 29500}
        for name in (*names, "MASTER_PORT"):
            if name in environ:
                try:
                    values[name] = int(environ[name], base=10)
                except ValueError:
                    raise ValueError(f"environment variable {name} is not an integer: {environ[name]!r}")
            elif name not in values:
                raise ValueError(f"environment variable {name} is missing, half of the set is there")
        if values[rank_name] not in range(values[size_name]):
            raise ValueError(
                f"environment variable {rank_name} is {values[rank_name]}, {size_name} is {values[size_name]}"
            )
        host = environ.get("MASTER_ADDR")
        if host is None and prefix:
            host = "".join(characters_of_first_host(environ.get("SLURM_JOB_NODELIST", "")))
        return RankInfo(
            values[rank_name], values[size_name], values[local_name], host or "127.0.0.1", values["MASTER_PORT"]
        )
    return RankInfo(0, 1, 0, "127.0.0.1", 29500)


def setup_distributed(
    info: RankInfo, backend: str | None = None, timeout: timedelta = timedelta(seconds=60)
) -> torch.device:
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(info.local_rank)
    dist.init_process_group(
        backend=backend or ("nccl" if on_gpu else "gloo"),
        init_method=f"tcp://{info.master_addr}:{info.master_port}",
        rank=info.rank,
        world_size=info.world_size,
        timeout=timeout,
    )
    device = torch.device(f"cuda:{info.local_rank}" if on_gpu else "cpu")
    meeting = torch.ones(1, device=device if dist.get_backend() == "nccl" else "cpu")
    present = future_sum(meeting).wait()
    assert int(present) == info.world_size
    return device


def cleanup_distributed() -> None:
    if dist.is_initialized():
        dist.destroy_process_group(dist.group.WORLD)


def future_sum(tensor: Tensor, then: Callable[[Tensor], Any] = lambda total: total) -> Future:
    """The future of `then(sum over ranks)`; `tensor` is the message and is overwritten."""

    def done(future: Future) -> Any:
        future.value()  # raises if the collective did not succeed
        return then(tensor)

    return dist.all_reduce(tensor, async_op=True).get_future().then(done)


def broadcast_model(model: nn.Module, src: int = 0) -> None:
    me = dist.get_rank()

    def fetch(tensor: Tensor) -> Future:
        message = tensor.detach().contiguous().view(-1).view(torch.uint8)

        def arrived(done: Future) -> None:
            done.wait()
            if me != src:
                tensor.detach().copy_(message.view(tensor.dtype).view(tensor.shape))

        return dist.broadcast(message, src, async_op=True).get_future().then(arrived)

    torch.futures.wait_all([fetch(tensor) for tensor in [*model.parameters(), *model.buffers()]])


def average_gradients(model: nn.Module) -> None:
    n = dist.get_world_size()

    def averaged(parameter: nn.Parameter) -> Future:
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach()
        message = torch.empty(
            gradient.shape, dtype=torch.promote_types(gradient.dtype, torch.float32), device=gradient.device
        )
        message.copy_(gradient)
        parameter.grad = gradient
        return future_sum(message, then=lambda total: gradient.copy_(total.div_(n)))

    pending = [averaged(p) for p in model.parameters() if p.requires_grad]
    if pending:
        for future in torch.futures.collect_all(pending).wait():
            future.wait()  # raises what a callback raised


def place_of(model: nn.Module) -> torch.device:
    with contextlib.suppress(StopIteration):
        return next(model.parameters()).device
    return torch.device("cpu")


class Progress:
    """What `train_step` and `train_epoch` have in common."""

    def __init__(self, model: nn.Module, loss_fn: LossFunction, optimizer: Optimizer) -> None:
        self.model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        self.where = place_of(model)
        self.sums = torch.zeros(2, dtype=torch.float64, device=self.where)

    def step(self, batch: Batch) -> Tensor:
        inputs, targets = batch[0].to(self.where), batch[1].to(self.where)
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        self.model.zero_grad()
        loss = self.loss_fn(self.model(inputs), targets)
        loss.backward()
        average_gradients(self.model)
        self.optimizer.step()
        loss = loss.detach().to(torch.float64)
        self.sums += torch.stack([loss * len(inputs), torch.full_like(loss, len(inputs))])
        return loss


def train_step(model: nn.Module, batch: Batch, loss_fn: LossFunction, optimizer: Optimizer) -> float:
    loss = Progress(model, loss_fn, optimizer).step(batch)
    return future_sum(loss, then=lambda total: total.item() / dist.get_world_size()).wait()


def train_epoch(
    model: nn.Module, loader: DataLoader, loss_fn: LossFunction, optimizer: Optimizer, epoch: int
) -> float:
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    for listener in {id(s): s for s in (sampler, inner) if hasattr(s, "set_epoch")}.values():
        listener.set_epoch(epoch)
    model.train(True)
    progress = Progress(model, loss_fn, optimizer)
    for batch in loader:
        progress.step(batch)
    loss, samples = future_sum(progress.sums).wait().tolist()
    return loss / samples if samples else 0.0


def evaluate(model: nn.Module, loader: DataLoader, loss_fn: LossFunction) -> dict[str, Any]:
    with contextlib.ExitStack() as afterwards:
        for module in model.modules():
            afterwards.callback(setattr, module, "training", module.training)
        model.eval()
        afterwards.enter_context(torch.set_grad_enabled(False))
        where = place_of(model)
        sums = torch.zeros(3, dtype=torch.float64, device=where)
        for inputs, targets in loader:
            inputs, targets = inputs.to(where), targets.to(where)
            outputs = model(inputs)
            sums[0] += loss_fn(outputs, targets) * len(targets)
            sums[1] += (outputs.argmax(-1) == targets).sum()
            sums[2] += len(targets)

    def verdict(total: Tensor) -> dict[str, Any]:
        loss, right, samples = total.tolist()
        return {
            "loss": loss / samples if samples else float("nan"),
            "accuracy": right / samples if samples else 0.0,
            "samples": int(samples),
        }

    return future_sum(sums, then=verdict).wait()


def save_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer, epoch: int) -> None:
    if dist.get_rank() == 0:
        folder, name = os.path.split(os.path.abspath(path))
        beside = os.path.join(folder, f"~{name}")
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, beside
        )
        try:
            os.link(beside, path)  # the first time: a second name for the finished file
        except FileExistsError:
            os.rename(beside, path)  # else take the old one's name away from it
        else:
            os.unlink(beside)
    future_sum(torch.zeros((), device=place_of(model))).wait()


def load_checkpoint(path: str | Path, model: nn.Module, optimizer: Optimizer) -> int:
    with open(path, "rb") as file:
        state = torch.load(file, map_location=torch.device("cpu"), weights_only=True)
    model.load_state_dict(state.pop("model"))
    optimizer.load_state_dict(state.pop("optimizer"))
    return state.pop("epoch")


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
    broadcast_model(model)
    train_loader, val_loader = create_dataloaders(
        train_dataset,
        val_dataset,
        batch_size,
        world_size=info.world_size,
        rank=info.rank,
        seed=seed,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loss_fn = nn.CrossEntropyLoss()
    history = []
    if info.rank == 0:
        print("epoch  train loss  val loss  val accuracy")
    for epoch in range(epochs):
        train_loss = train_epoch(model, train_loader, loss_fn, optimizer, epoch)
        val = evaluate(model, val_loader, loss_fn)
        history.append(
            {
                "epoch": epoch,
                "train_loss": train_loss,
                "val_loss": val["loss"],
                "val_accuracy": val["accuracy"],
            }
        )
        if info.rank == 0:
            print(f"{epoch:5d}  {train_loss:10.4f}  {val['loss']:8.4f}  {val['accuracy']:12.4f}")
    return history
