"""Forward and backward of a layer whose experts are on several ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.probes import raised
from support.probes.returned import WrongReturn, tensor_returned

Case = Mapping[str, Any]  # "router", "states", and by rank "inputs" and "upstream"


def expert_of(d_model: int, d_hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(d_model, d_hidden), nn.GELU(), nn.Linear(d_hidden, d_model))


def new_layer(model_parallel: Any, case: Case) -> Any:
    """Return a layer of the sizes of the case."""
    experts, d_model = case["router"].shape
    d_hidden = len(case["states"][0]["0.bias"])
    layer = model_parallel.ExpertParallelMLP(d_model, d_hidden, experts)
    if not isinstance(layer, nn.Module):
        raise WrongReturn("an ExpertParallelMLP must be an nn.Module.")
    return layer


def held_experts(layer: nn.Module, states: Sequence[Mapping[str, Tensor]]) -> dict[int, nn.Module]:
    """Return the experts that a layer has, by the number of the state with their weights."""
    found = {}
    for module in layer.modules():
        own = module.state_dict()
        for number, state in enumerate(states):
            if own.keys() == state.keys() and torch.equal(own["0.weight"], state["0.weight"]):
                found[number] = module
    return found


def passed(rank: int, model_parallel: Any, case: Case) -> dict[str, Any]:
    """Load a layer and run it forward and backward; return what this rank has of it."""
    layer = new_layer(model_parallel, case)
    before = list(layer.parameters())
    layer.load_full(case["router"].clone(), [dict(state) for state in case["states"]])
    after = list(layer.parameters())
    held = held_experts(layer, case["states"])
    routers: list[nn.Parameter] = [p for p in after if p.shape == case["router"].shape]
    kept: dict[str, Any] = {
        "same": len(before) == len(after)
        and all(a is b for a, b in zip(before, after, strict=True)),
        "held": sorted(held),
        "experts": sum(isinstance(module, nn.GELU) for module in layer.modules()),
        "router": bool(routers) and bool((routers[0] == case["router"]).all()),
    }
    inputs = case["inputs"][rank].clone().requires_grad_()
    output = tensor_returned(layer(inputs), "ExpertParallelMLP")
    if output.shape != inputs.shape:
        raise WrongReturn(
            f"For tokens of shape {tuple(inputs.shape)} the layer returns {tuple(output.shape)}. "
            "Outputs must have the shape of the inputs."
        )
    if case["backward"] and output.requires_grad:
        # Not output.backward(gradient), which would import sympy on each rank.
        (output * case["upstream"][rank]).sum().backward()
    return kept | {
        "output": output.detach().clone(),
        "input_grad": inputs.grad,
        "router_grad": routers[0].grad if routers else None,
        "expert_grads": {
            number: {name: param.grad for name, param in module.named_parameters()}
            for number, module in held.items()
        },
    }


def probe_experts(rank: int, model_parallel: Any, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Return what `passed` does, for each case."""
    return [passed(rank, model_parallel, case) for case in cases]


def expert_refusals(model_parallel: Any, counts: Sequence[int]) -> list[str | None]:
    """Return the error of the constructor for each number of experts, or None."""
    errors: list[str | None] = []
    for count in counts:
        error = raised(partial(model_parallel.ExpertParallelMLP, 2, 3, count))
        kind = ValueError if isinstance(error, ValueError) else type(error)
        errors.append(f"{kind.__name__}: {error}" if error else None)
    return errors


def probe_balance(rank: int, model_parallel: Any, cases: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the loss and the gradient of the probabilities, for each case."""
    seen = []
    for probabilities, chosen in cases:
        own = probabilities[rank].clone().requires_grad_()
        loss = tensor_returned(
            model_parallel.load_balancing_loss(own, chosen[rank]), "load_balancing_loss"
        )
        if loss.numel() != 1:
            raise WrongReturn(f"The loss has the shape {tuple(loss.shape)}. It must be a scalar.")
        if loss.requires_grad:
            loss.sum().backward()  # type: ignore[no-untyped-call]
        seen.append({"loss": float(loss.detach()), "gradient": own.grad})
    return seen


def dense(case: Case) -> dict[str, Any]:
    """Return the outputs, the gradients and the choices of the same layer in one process.

    Gradients are those of the sum of outputs times upstream over all ranks, divided by N.
    """
    ranks = len(case["inputs"])
    inputs = torch.cat(list(case["inputs"])).double().requires_grad_()
    router = case["router"].double().requires_grad_()
    d_hidden, d_model = case["states"][0]["0.weight"].shape
    experts = nn.ModuleList(expert_of(d_model, d_hidden).double() for _ in case["states"])
    for expert, state in zip(experts, case["states"], strict=True):
        expert.load_state_dict(state)
    probabilities = F.linear(inputs, router).softmax(-1)  # (tokens, experts)
    probability, chosen = probabilities.max(-1)
    every = torch.stack([expert(inputs) for expert in experts], 1)  # (tokens, experts, d_model)
    plain = every[torch.arange(len(inputs)), chosen]
    output = plain * probability[:, None]
    upstream = torch.cat(list(case["upstream"])).double()
    leaves = [inputs, router, *experts.parameters()]
    grads = torch.autograd.grad((output * upstream).sum() / ranks, leaves, allow_unused=True)
    names = list(case["states"][0])
    split = [len(tokens) for tokens in case["inputs"]]
    of_experts = iter(grads[2:])
    return {
        "output": torch.split(output.detach(), split),
        "plain": torch.split(plain.detach(), split),
        "every": torch.split((every * probability[:, None, None]).detach(), split),
        "chosen": torch.split(chosen, split),
        "input_grad": torch.split((grads[0] * ranks), split),
        "router_grad": grads[1],
        "expert_grads": [{name: next(of_experts) for name in names} for _ in case["states"]],
    }
