"""Phase 1, trainer. Every collective is a future; what comes after it is a callback."""

import contextlib

from torch.futures import Future


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
