"""Phase 3, second file: training in which no rank holds a whole model.

Every function uses the default process group, which already exists. N is the world size, r is this
rank. Read GUIDELINES.md from "The mean over tokens" on. `gradsync check` shows your progress.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from template_data_loader import TokenLoader, document_mask, pack_documents

### BEGIN SOLUTION
# isort: split
import functools
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.nn.functional as F

### END SOLUTION


@dataclass(frozen=True)
class RankInfo:
    """The rank of this process, the world size, and the address at which the ranks connect."""

    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    master_port: int


def token_weighted_loss(logits: Tensor, targets: Tensor, ignore_index: int = -100) -> Tensor:
    """Return this rank's share of the mean cross-entropy over all tokens of all ranks.

    If its gradients are averaged over the ranks, they are the gradients of the mean over all tokens
    of all ranks that are not ignored, even if some ranks have more of them than others. A rank
    without such tokens contributes zeros. Without any on any rank, the loss is 0, and so are its
    gradients. The ranks exchange a single number.

    Args:
        logits: scores of shape (..., vocabulary).
        targets: int64 tokens of shape (...).
        ignore_index: the target of the tokens that do not count.

    Returns:
        A scalar; its mean over the ranks is the mean loss over all tokens.
    """
    ### BEGIN SOLUTION
    scores = logits.flatten(0, -2)  # (tokens, vocabulary)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))  # from half precision
    total = F.cross_entropy(scores, targets.flatten(), ignore_index=ignore_index, reduction="sum")
    count = (targets != ignore_index).sum().float()
    dist.all_reduce(count)
    # Averaging divides the sum over ranks by N, so multiply by N here.
    return total * (dist.get_world_size() / count.clamp(min=1))
    ### END SOLUTION


### BEGIN SOLUTION
# Its name since torch 2.13, where the previous one warns.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class _Sharded:
    """A parameter of which each rank keeps one of N equal parts; the last ones may be padded."""

    def __init__(self, whole: Tensor, *, trainable: bool) -> None:
        self.shape, self.numel = whole.shape, whole.numel()
        self.size = math.ceil(self.numel / dist.get_world_size())  # elements that a rank keeps
        self.param = nn.Parameter(self.cut(whole), requires_grad=trainable)  # (size,)

    def cut(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a tensor like the parameter, in memory of its own."""
        return self._padded(whole)[dist.get_rank()].clone()

    def gather(self, dtype: torch.dtype) -> Tensor:
        """Return the whole parameter in a dtype, from the parts of all ranks."""
        whole = torch.empty(dist.get_world_size(), self.size, dtype=dtype, device=self.param.device)
        dist.all_gather(list(whole), self.param.detach().to(dtype))  # into the rows of `whole`
        return whole.view(-1)[: self.numel].view(self.shape)

    def scatter(self, grad: Tensor) -> tuple[dist.Work, Tensor]:
        """Start the mean of all ranks' gradients of the whole parameter; each gets its part."""
        parts = self._padded(grad.to(self.param.dtype)) / dist.get_world_size()  # (N, size)
        mean = torch.empty_like(self.param, requires_grad=False)  # (size,)
        return _reduce_scatter(mean, parts.view(-1), async_op=True), mean

    def _padded(self, whole: Tensor) -> Tensor:
        ranks = dist.get_world_size()
        flat = F.pad(whole.detach().reshape(-1), (0, ranks * self.size - self.numel))
        return flat.view(ranks, self.size)


class _Use:
    """One use of a sharded parameter in a forward pass, to which backward returns."""

    def __init__(self, sharded: _Sharded, dtype: torch.dtype) -> None:
        self.sharded, self.dtype = sharded, dtype
        self.whole: Tensor | None = None  # during the backward of the submodule

    def again(self) -> Tensor:
        """Return the whole parameter in backward, gathered when it is first needed there."""
        whole = self.sharded.gather(self.dtype) if self.whole is None else self.whole
        if self.sharded.param.requires_grad:  # then its gradient ends this use
            self.whole = whole
        return whole


class _Gather(torch.autograd.Function):
    """All-gather in forward, reduce-scatter in backward: each is the transpose of the other."""

    @staticmethod
    def forward(
        ctx: Any, _part: Tensor, use: _Use, reduce: Callable[[_Sharded, Tensor], None]
    ) -> Tensor:
        ctx.use, ctx.reduce = use, reduce
        return use.sharded.gather(use.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, None]:
        ctx.use.whole = None  # every operation that needs it has run
        ctx.reduce(ctx.use.sharded, grad)
        return None, None, None  # the part's gradient arrives later: see `finish`


### END SOLUTION


class FullyShardedModule(nn.Module):
    """Wraps a module; each rank keeps 1/N of its parameters, gradients and optimizer state.

    This is stage 3 of ZeRO. All ranks begin with the values of rank 0. A parameter with two or more
    dimensions is sharded: each rank keeps at most `ceil(numel / N)` of its elements, in the
    parameter's dtype. Just before the submodule that owns it computes, in forward and again in
    backward, the parameter is gathered from all ranks, in `compute_dtype` if that is given, and
    right afterwards it is freed. As soon as its gradient is ready, it is reduce-scattered to the
    mean over ranks, in the parameter's own dtype. Parameters with fewer dimensions, such as biases
    and norms, are replicated in their own dtype, and their gradients are averaged.

    `parameters()` are what an optimizer steps. After `finish()`, each trainable one has a gradient
    of its own shape and dtype. Tied, frozen and unused parameters, several forwards before a
    backward, `torch.no_grad()` and evaluation work as in the wrapped module. All ranks must run the
    same submodules in the same order.

    Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models", 2020.

    Args:
        module: the module to shard, on every rank; it is changed, and used as `.module`.
        compute_dtype: the dtype in which sharded parameters are sent and computed. None: their own.
    """

    def __init__(self, module: nn.Module, *, compute_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        ### BEGIN SOLUTION
        self.module = module
        self._dtype = compute_dtype
        self._running: tuple[_Sharded, dist.Work, Tensor] | None = None  # a reduce-scatter
        self._sharded: dict[Tensor, _Sharded] = {}  # by this rank's part
        parts = {param: self._begin(param) for param in module.parameters()}
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0)
        for owner in module.modules():
            own = owner._parameters
            own.update({name: parts[param] for name, param in own.items() if param is not None})
            if any(param is not None for param in own.values()):
                owner.forward = functools.partial(self._compute, owner, owner.forward)
        ### END SOLUTION

    def forward(self, *args: Any, **options: Any) -> Any:
        """Call the wrapped module."""
        ### BEGIN SOLUTION
        return self.module(*args, **options)
        ### END SOLUTION

    def finish(self) -> None:
        """Wait until every gradient is the mean over all ranks."""
        ### BEGIN SOLUTION
        self._end_reduction()
        trainable = [param for param in self.parameters() if param.requires_grad]
        for param in trainable:
            if param.grad is None:  # no rank has used it
                param.grad = torch.zeros_like(param)
        _average([p.grad for p in trainable if p not in self._sharded and p.grad is not None])
        ### END SOLUTION

    def full_state_dict(self) -> dict[str, Tensor]:
        """Return the whole parameters and the buffers, under the wrapped module's names.

        Every rank must call this, and every rank gets all of them, in the parameters' dtype.
        """
        ### BEGIN SOLUTION
        state = self.module.state_dict(keep_vars=True)
        whole = {part: one.gather(part.dtype) for part, one in self._sharded.items()}
        return {name: whole.get(value, value).detach().clone() for name, value in state.items()}
        ### END SOLUTION

    ### BEGIN SOLUTION
    def _begin(self, param: nn.Parameter) -> nn.Parameter:
        """Return what replaces a parameter: this rank's part of it, or the same one if small."""
        whole = param.detach().contiguous()
        dist.broadcast(whole, src=0)
        if param.dim() < 2:
            param.detach().copy_(whole)
            return param
        sharded = _Sharded(whole, trainable=param.requires_grad)
        self._sharded[sharded.param] = sharded
        return sharded.param

    def _compute(self, owner: nn.Module, forward: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        """Run the forward of a submodule that owns parameters, which are whole meanwhile."""
        own = [param for param in owner._parameters.values() if param is not None]
        if self._dtype is not None:  # norms compute in their own dtype, as sharded layers do not
            dtype = self._dtype if any(p in self._sharded for p in own) else own[0].dtype
            args = tuple(_cast(value, dtype) for value in args)
            kw = {name: _cast(value, dtype) for name, value in kw.items()}
        with self._gathered(owner):
            return forward(*args, **kw)

    @contextmanager
    def _gathered(self, owner: nn.Module) -> Iterator[None]:
        """Let the owner's parameters be whole, and autograd save where to find them again."""
        uses: dict[int, _Use] = {}  # by the address of the memory
        visible = {}
        computes = (
            self._dtype if any(p in self._sharded for p in owner._parameters.values()) else None
        )
        for name, param in owner._parameters.items():
            if param in self._sharded:
                use = _Use(self._sharded[param], computes or param.dtype)
                visible[name] = _Gather.apply(param, use, self._reduce)
                uses[visible[name].untyped_storage().data_ptr()] = use
            elif param is not None and computes is not None:  # a bias, beside a sharded weight
                visible[name] = param.to(computes)

        def pack(saved: Tensor) -> Any:
            use = uses.get(saved.untyped_storage().data_ptr())
            if use is None:
                return saved
            return use, saved.size(), saved.stride(), saved.storage_offset()

        def unpack(packed: Any) -> Tensor:
            if isinstance(packed, Tensor):
                return packed
            use, *view = packed
            return use.again().as_strided(*view)

        owner.__dict__.update(visible)  # Python finds these before the registered parameters
        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                yield
        finally:
            for name in visible:
                del owner.__dict__[name]

    def _reduce(self, sharded: _Sharded, grad: Tensor) -> None:
        """Start to reduce-scatter a gradient, when the previous one is done: two use memory."""
        self._end_reduction()
        self._running = (sharded, *sharded.scatter(grad))

    def _end_reduction(self) -> None:
        if self._running is not None:
            sharded, work, mean = self._running
            self._running = None
            work.wait()
            before = sharded.param.grad
            sharded.param.grad = mean if before is None else before + mean

    ### END SOLUTION


### BEGIN SOLUTION
def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def _average(tensors: list[Tensor]) -> None:
    """Replace tensors by their means over the ranks, with one message for each dtype."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        some = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in some]) / dist.get_world_size()
        dist.all_reduce(flat)
        for tensor, mean in zip(some, flat.split([t.numel() for t in some]), strict=True):
            tensor.copy_(mean.view_as(tensor))


### END SOLUTION


def clip_grad_norm_(model: FullyShardedModule, max_norm: float) -> float:
    """Scale all gradients so that their norm is at most `max_norm`.

    The norm is the 2-norm of all gradients, as if nothing were sharded: a replicated parameter
    counts once. It is the same on every rank. If it is infinite or NaN, the gradients are not
    changed.

    Returns:
        The norm before scaling.
    """
    ### BEGIN SOLUTION
    own, shared = 0.0, 0.0  # sums of squares: of this rank's parts, and of replicated gradients
    grads = {param: param.grad for param in model.parameters() if param.grad is not None}
    for param, grad in grads.items():
        square = grad.double().square().sum().item()
        if param in model._sharded:
            own += square
        else:
            shared += square
    total = next(model.parameters()).new_tensor(own, dtype=torch.float64)
    dist.all_reduce(total)
    norm = math.sqrt(total.item() + shared)
    if math.isfinite(norm) and norm > max_norm:
        for grad in grads.values():
            grad.mul_(max_norm / norm)
    return norm
    ### END SOLUTION


class LossScaler:
    """Scales the loss so that small gradients do not become zero in half precision.

    The scale is halved after a step that was skipped, and doubled after `growth_interval` steps
    without a skip. It is the same on every rank.

    Source: Micikevicius et al., "Mixed Precision Training", 2018.

    Args:
        init_scale: the scale at the beginning.
        growth_interval: the number of steps in a row after which the scale is doubled.
    """

    def __init__(self, init_scale: float = 2.0**16, growth_interval: int = 2000) -> None:
        ### BEGIN SOLUTION
        self._scale = init_scale
        self._interval = growth_interval
        self._steps = 0  # since the scale last changed
        ### END SOLUTION

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale, for `backward`."""
        ### BEGIN SOLUTION
        return loss * self._scale
        ### END SOLUTION

    def step(self, optimizer: Optimizer, model: nn.Module) -> bool:
        """Divide the gradients by the scale and step the optimizer, or skip the step.

        All ranks skip the step if any rank has a gradient with an infinite or NaN element.

        Returns:
            Whether the optimizer stepped.
        """
        ### BEGIN SOLUTION
        grads = [param.grad for param in model.parameters() if param.grad is not None]
        for grad in grads:
            grad.div_(self._scale)
        finite = all(grad.isfinite().all() for grad in grads)
        skip = next(model.parameters()).new_tensor(float(not finite), dtype=torch.float32)
        dist.all_reduce(skip, op=dist.ReduceOp.MAX)
        if skip.item():
            self._scale, self._steps = self._scale / 2, 0
            return False
        optimizer.step()
        self._steps += 1
        if self._steps == self._interval:
            self._scale, self._steps = self._scale * 2, 0
        return True
        ### END SOLUTION

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, and the number of steps since it changed."""
        ### BEGIN SOLUTION
        return {"scale": self._scale, "steps": self._steps}
        ### END SOLUTION

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the scale and the number of steps of `state_dict`."""
        ### BEGIN SOLUTION
        self._scale, self._steps = state["scale"], state["steps"]
        ### END SOLUTION


def save_sharded(
    folder: str | Path, model: FullyShardedModule, optimizer: Optimizer, step: int
) -> None:
    """Save a checkpoint to which each rank writes its own shards.

    It replaces the previous checkpoint in the folder, completely or not at all: if any rank fails
    at any moment, the previous one can still be loaded. When this returns, the new one can be
    loaded on every rank. The folder is created if necessary.
    """
    ### BEGIN SOLUTION
    folder, rank = Path(folder), dist.get_rank()
    slot = "b" if _latest(folder).get("slot") == "a" else "a"  # not the previous checkpoint's
    (folder / slot).mkdir(parents=True, exist_ok=True)
    state = {
        "model": model.module.state_dict(),
        "optimizer": _named_state(model, optimizer),
        "groups": [
            {name: value for name, value in one.items() if name not in ("params", "param_names")}
            for one in optimizer.param_groups
        ],
    }
    _write(folder / slot / f"rank{rank}.pt", functools.partial(torch.save, state))
    dist.barrier()  # now every rank's file is complete
    if rank == 0:
        latest = json.dumps({"slot": slot, "ranks": dist.get_world_size(), "step": step})
        _write(folder / LATEST, lambda path: path.write_text(latest))
    dist.barrier()  # now this checkpoint is the latest for every rank
    ### END SOLUTION


### BEGIN SOLUTION
LATEST = "latest.json"  # which checkpoint to load; replacing this file ends a save


def _write(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file completely or not at all: under another name first."""
    part = path.with_name(f"{path.name}.part")
    write(part)
    part.replace(path)


def _latest(folder: Path) -> dict[str, Any]:
    """Return what the latest checkpoint in a folder is; empty if there is none."""
    path = folder / LATEST
    try:
        return json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _named_state(model: FullyShardedModule, optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """Return the optimizer's state by the names of parameters: numbers change with the model."""
    return {
        name: dict(optimizer.state[param])
        for name, param in model.module.named_parameters()
        if optimizer.state.get(param)
    }


### END SOLUTION


def load_sharded(folder: str | Path, model: FullyShardedModule, optimizer: Optimizer) -> int:
    """Load the latest complete checkpoint, which another number of ranks may have saved.

    Every rank must call this. Afterwards the full parameters, buffers and the optimizer's state
    equal the saved ones, bit for bit. No code from a file is run.

    Returns:
        The step that was saved.

    Raises:
        FileNotFoundError, ValueError: if there is no complete checkpoint, on every rank. The
            message names the file.
    """
    ### BEGIN SOLUTION
    place = Path(folder)
    latest = _latest(place)
    if not latest:
        raise FileNotFoundError(f"{place / LATEST} does not exist: there is no checkpoint")
    paths = [place / latest["slot"] / f"rank{rank}.pt" for rank in range(latest["ranks"])]
    saved = [_read(path) for path in paths]  # all, before anything is changed

    def resharded(pieces: list[Any], like: nn.Parameter) -> Any:
        """Return this rank's part of a tensor that was saved in pieces, or a replicated value."""
        sharded = model._sharded.get(like)
        if sharded is None or not isinstance(pieces[0], Tensor) or pieces[0].dim() == 0:
            return pieces[0]
        return sharded.cut(torch.cat(pieces)[: sharded.numel])  # without the old padding

    params = dict(model.module.named_parameters())
    with torch.no_grad():
        for name, value in model.module.state_dict(keep_vars=True).items():
            value.copy_(resharded([part["model"][name] for part in saved], value))
    state = {
        params[name]: {
            key: resharded([part["optimizer"][name][key] for part in saved], params[name])
            for key in kept
        }
        for name, kept in saved[0]["optimizer"].items()
    }
    _set_state(optimizer, state, saved[0]["groups"])
    return latest["step"]
    ### END SOLUTION


### BEGIN SOLUTION
def _read(path: Path) -> dict[str, Any]:
    """Return the content of a rank's file, which is mapped into memory, not read at once."""
    try:
        return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist: the checkpoint is incomplete") from None
    except Exception as error:
        raise ValueError(f"{path} is not a complete checkpoint: {error}") from error


def _set_state(
    optimizer: Optimizer, state: dict[nn.Parameter, dict[str, Any]], groups: list[dict[str, Any]]
) -> None:
    """Load an optimizer's state by parameter, and the settings of its groups."""
    numbers = itertools.count()
    packed: dict[int, dict[str, Any]] = {}
    settings = []
    for group, setting in zip(optimizer.param_groups, groups, strict=True):
        indices = {next(numbers): param for param in group["params"]}
        packed |= {index: state[param] for index, param in indices.items() if param in state}
        settings.append({**setting, "params": list(indices)})
    optimizer.load_state_dict({"state": packed, "param_groups": settings})


### END SOLUTION


def train(
    info: RankInfo,
    model: nn.Module,
    sequences: Tensor,
    *,
    steps: int,
    batch_size: int,
    lr: float,
    seed: int = 0,
    compute_dtype: torch.dtype | None = None,
    max_norm: float = 1.0,
    resume_from: str | Path | None = None,
) -> list[dict[str, Any]]:
    """Train a language model with AdamW, sharded over all ranks.

    Rank 0 prints; the other ranks print nothing. In float32, the losses equal those of one process
    that trains on the global batches.

    Args:
        info: this process's rank and the world size.
        model: a module from tokens (batch, L) to logits (batch, L, vocabulary); it is sharded.
        sequences: int64 tokens of shape (sequences, L + 1), the same on every rank.
        steps: the number of optimizer steps, including those of the run that is resumed.
        batch_size: the number of sequences of one rank in a step.
        lr: the learning rate.
        seed: the seed of the sequences' order.
        compute_dtype: as in `FullyShardedModule`. With float16, the loss is scaled.
        max_norm: the largest norm of the gradients of a step.
        resume_from: the folder of checkpoints. If it has one, training continues from it, even with
            a different world size. A checkpoint is saved there at least at the end.

    Returns:
        A list with `{"step", "loss", "grad_norm", "tokens_per_second"}` for each step of this call.
        The loss is the mean over all tokens of all ranks, the norm that before clipping, without
        the scale of the loss, and the steps count from 0.
    """
    ### BEGIN SOLUTION
    if len(sequences) < batch_size * info.world_size:
        raise ValueError(
            f"sequences must have a global batch, {batch_size * info.world_size}, "
            f"got {len(sequences)}"
        )
    device = next(model.parameters()).device
    sharded = FullyShardedModule(model, compute_dtype=compute_dtype)
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=lr)
    loader = TokenLoader(sequences, batch_size, info.world_size, info.rank, seed=seed)
    scaler = LossScaler(2.0**16 if compute_dtype == torch.float16 else 1.0)
    place = _Place()
    others = {"place": place, "loader": loader, "scaler": scaler}
    run = _Run(resume_from, sharded, optimizer, others)
    first = run.resume()
    for group in optimizer.param_groups:
        group["lr"] = lr  # of this call, not of the checkpoint

    history = []
    sharded.train()
    for step, batch in zip(range(first, steps), _batches(loader, place), strict=False):
        began = time.perf_counter()
        inputs, targets = (part.to(device) for part in batch)  # each (batch_size, L)
        optimizer.zero_grad()
        loss = token_weighted_loss(sharded(inputs), targets)
        scale = scaler.scale(loss.new_ones(())).item()
        scaler.scale(loss).backward()
        sharded.finish()
        grad_norm = clip_grad_norm_(sharded, max_norm * scale) / scale
        scaler.step(optimizer, sharded)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        seconds = time.perf_counter() - began
        history.append(
            {
                "step": step,
                "loss": mean.item() / info.world_size,
                "grad_norm": grad_norm,
                "tokens_per_second": targets.numel() * info.world_size / seconds,
            }
        )
        if info.rank == 0:
            print(
                "step {step}: loss {loss:.4f}, {tokens_per_second:,.0f} tokens/s".format(
                    **history[-1]
                )
            )
        if (step + 1) % run.EVERY == 0 or step + 1 == steps:
            run.save(step + 1)
    return history
    ### END SOLUTION


### BEGIN SOLUTION
def _batches(loader: TokenLoader, place: _Place) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the loader's batches, epoch after epoch."""
    while True:
        loader.set_epoch(place.epoch)
        yield from loader
        place.epoch += 1


class _Place:
    """The epoch, as an object whose state can be saved."""

    epoch = 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch = state["epoch"]


class _Run:
    """A training run in a folder: sharded checkpoints, and the state of small objects beside."""

    EVERY = 50  # steps between two checkpoints
    SAVED = "saved"  # a file that says that there is a checkpoint: a damaged one is an error

    def __init__(
        self,
        folder: str | Path | None,
        model: FullyShardedModule,
        optimizer: Optimizer,
        others: dict[str, Any],  # objects with `state_dict` and `load_state_dict`
    ) -> None:
        self._folder = None if folder is None else Path(folder)
        self._model, self._optimizer, self._others = model, optimizer, others

    def resume(self) -> int:
        """Load the folder's checkpoint if there is one; return the number of steps taken."""
        if self._folder is None or not (self._folder / self.SAVED).exists():
            return 0
        step = load_sharded(self._folder, self._model, self._optimizer)
        state = torch.load(self._beside(step), weights_only=True)
        for name, one in self._others.items():
            one.load_state_dict(state[name])
        return step

    def save(self, step: int) -> None:
        """Save a checkpoint after that many steps.

        The other states are in a file of that step, which is complete before the checkpoint is.
        """
        if self._folder is None:
            return
        if dist.get_rank() == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            state = {name: one.state_dict() for name, one in self._others.items()}
            _write(self._beside(step), functools.partial(torch.save, state))
        save_sharded(self._folder, self._model, self._optimizer, step)
        if dist.get_rank() == 0:
            (self._folder / self.SAVED).touch()
            for path in set(self._folder.glob("step*.pt")) - {self._beside(step)}:
                path.unlink()

    def _beside(self, step: int) -> Path:
        assert self._folder is not None
        return self._folder / f"step{step}.pt"


### END SOLUTION


def main() -> None:
    """Train on Python's own modules: `torchrun --nproc_per_node 2 phase3/template_trainer.py`."""
    # As in phase 2: an optimizer must not import this module after the process group exists.
    import torch.distributed.nn.functional
    from model import EOS, Transformer, standard_library

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    info = RankInfo(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        local_rank=int(os.environ["LOCAL_RANK"]),
        master_addr=os.environ["MASTER_ADDR"],
        master_port=int(os.environ["MASTER_PORT"]),
    )
    torch.manual_seed(0)
    model = Transformer(mask=lambda tokens: document_mask(tokens, EOS))
    sequences = pack_documents(standard_library(), 128, EOS)
    train(info, model, sequences, steps=200, batch_size=8, lr=1e-3, resume_from="transformer")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
