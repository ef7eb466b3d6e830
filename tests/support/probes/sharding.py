"""Steps of a sharded optimizer, and of torch's own one with the same gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from support.probes import raised
from support.probes.optimizers import elements, parameters, watched
from support.probes.ready_made import ZERO, without
from support.probes.seeding import seed_weights

GROUPS = [[0, 3], [4, 1, 2]]  # of five parameters, by their numbers
ALIKE = 10  # elements of each parameter, if every parameter has its own group

# What an optimizer does: the `name` of its class and its `options`; the `shapes` of the parameters
# and the `groups`, each with the numbers of its `members`. Optional: float32 and float64 parameters
# in turn (`mixed`), created in the same order on all ranks (`alike`), given as an `iterator`; the
# options of OneCycleLR (`cycle`); and a group (`late`) that is added before a step (`late_at`).
Case = Mapping[str, Any]
Gradients = Sequence[Sequence[NDArray[Any] | None]]  # (step, parameter)


def make_params(case: Case, rank: int = 0) -> list[nn.Parameter]:
    """Return parameters of float64, or of two dtypes in turn; every call gives the same values."""
    seed_weights(5)
    dtypes = [torch.float64, torch.float32 if case.get("mixed") else torch.float64]
    drawn = [torch.rand(s, dtype=dtypes[n % 2]) * 4 - 2 for n, s in enumerate(case["shapes"])]
    return parameters(drawn, rank)


def _make_optimizer(
    params: Sequence[nn.Parameter], case: Case, kind: type, sharded: Callable[..., Any] | None
) -> Any:
    """Return an optimizer of the class `kind`, or a `sharded` one that uses this class."""
    groups: Any = [
        {**{k: v for k, v in group.items() if k != "members"}, "params": members}
        for group in case["groups"]
        if (members := [params[index] for index in group["members"]])
    ]
    if case.get("iterator"):  # as model.parameters() is
        [groups] = (iter(group["params"]) for group in groups)
    if sharded is None:
        return kind(groups, **case["options"])
    return sharded(groups, kind, **case["options"])


def drive(
    case: Case, grads: Gradients, sharded: Callable[..., Any] | None = None, rank: int = 0
) -> dict[str, Any]:
    """Step with the gradients, (step, parameter).

    Return the parameters after each step, and the number of elements of state at the end.
    """
    params = make_params(case, rank)
    kind, made = watched(getattr(torch.optim, case["name"]))
    optimizer = _make_optimizer(params, case, kind, sharded)
    cycle = case.get("cycle")
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, **cycle) if cycle else None
    after = []
    for number, row in enumerate(grads):
        if number == case.get("late_at"):
            late = {k: v for k, v in case["late"].items() if k != "members"}
            optimizer.add_param_group(
                {**late, "params": [params[i] for i in case["late"]["members"]]}
            )
        for param, grad in zip(params, row, strict=True):
            param.grad = None if grad is None else torch.from_numpy(grad).to(param.dtype)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        after.append([param.detach().clone() for param in params])
    return {"after": after, "kept": elements(one.state for one in made)}


def probe_drive(rank: int, trainer: Any, case: Case, grads: Gradients) -> dict[str, Any]:
    """Do the same as `drive`, with the submission's optimizer."""
    with without(ZERO):
        return drive(case, grads, trainer.ShardedOptimizer, 0 if case.get("alike") else rank)


def probe_state(
    rank: int, world_size: int, trainer: Any, shapes: Sequence[Sequence[int]], first: int
) -> list[list[int]]:
    """Count the elements of Adam's state, [kept by all optimizers, shown by `.state`].

    There are three counts: after a step with the `first` parameters, after a step with all of them,
    where the others are a group that was added later, and if every parameter has its own group.
    """

    def kept_by(optimizer: Any, params: Sequence[nn.Parameter]) -> list[int]:
        for param in params:
            param.grad = torch.ones_like(param)
        with without(ZERO):
            optimizer.step()
        return [elements(one.state for one in made), elements([optimizer.state])]

    kind, made = watched(torch.optim.Adam)
    params = parameters([torch.ones(shape) for shape in shapes], rank)
    optimizer = trainer.ShardedOptimizer(params[:first], kind, lr=0.1)
    rows = [kept_by(optimizer, params)]
    optimizer.add_param_group({"params": params[first:], "lr": 0.01})
    rows.append(kept_by(optimizer, params))
    made.clear()
    alike = parameters([torch.ones(ALIKE) for _ in range(2 * world_size)], rank)
    optimizer = trainer.ShardedOptimizer([{"params": [param]} for param in alike], kind, lr=0.1)
    return [*rows, kept_by(optimizer, alike)]


def probe_groups(trainer: Any) -> dict[str, Any]:
    """Create an optimizer of the two GROUPS, clear the gradients, and return its attributes."""
    params = [nn.Parameter(torch.ones(k + 1)) for k in range(5)]
    groups: list[dict[str, Any]] = [{"params": [params[k] for k in group]} for group in GROUPS]
    groups[0]["lr"] = 0.03
    optimizer = trainer.ShardedOptimizer(groups, torch.optim.SGD, lr=0.1)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.zero_grad()
    cleared = all(p.grad is None or not p.grad.any() for p in params)
    zeros_or_none = []
    for to_none in (False, True):
        for param in params:
            param.grad = torch.ones_like(param)
        refused = raised(partial(optimizer.zero_grad, set_to_none=to_none))
        kept = [p.grad is not None and not p.grad.any() for p in params]
        gone = [p.grad is None for p in params]
        zeros_or_none.append(refused is None and all(gone if to_none else kept))
    return {
        "kind": isinstance(optimizer, torch.optim.Optimizer),
        "groups": [
            [number for held in group["params"] for number, p in enumerate(params) if p is held]
            for group in optimizer.param_groups
        ],
        "settings": [float(group["lr"]) for group in optimizer.param_groups],
        "cleared": cleared,
        "zeros_or_none": zeros_or_none,
    }
