"""Mistakes in a layer of experts on several ranks, and in the loss that balances them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradsync.ranks.deadlocks.calls import numel
from gradsync.records import Diagnosis, Observation
from gradsync.testing.traffic import traffic
from gradsync.testing.values import array, close
from gradsync.text import listed, ranks_text
from support.probes.experts import dense
from support.rules.wrong_results import last_line

GUIDE = "Experts"
ROUNDINGS = 512.0  # float32 against float64, through two layers
TO_ALL = ("all_gather", "all_reduce", "broadcast", "reduce_scatter", "gather", "scatter", "reduce")


def layer_mistake(seen: Observation, case: Mapping[str, Any]) -> Diagnosis | None:
    """Return the diagnosis of a layer: what it has, its outputs and its gradients."""
    right = dense(case)
    found = _held_mistake(seen, len(case["states"])) or output_mistake(seen, right)
    if found is None and case["backward"]:
        found = gradient_mistake(seen, right)
    return found


def _held_mistake(seen: Observation, experts: int) -> Diagnosis | None:
    size = len(seen)
    own = experts // size
    whole = tuple(rank for rank, value in enumerate(seen) if value["experts"] > own)
    if whole:
        text = (
            f"Rank {whole[0]} has {seen[whole[0]]['experts']} of {experts} experts. With {size} "
            f"ranks, each must have {own}: experts are what no rank has room for."
        )
        return Diagnosis("parameters-not-sharded", whole, text, guide=GUIDE)
    for rank, value in enumerate(seen):
        wanted = list(range(rank * own, (rank + 1) * own))
        if value["held"] != wanted:
            text = (
                f"After load_full, rank {rank} has the weights of experts {value['held']}. It must "
                f"have {wanted}: r * E / N up to (r + 1) * E / N."
            )
            return Diagnosis("wrong-experts", (rank,), text, guide=GUIDE)
        if not value["router"]:
            text = f"After load_full, rank {rank} does not have the router's weight."
            return Diagnosis("wrong-experts", (rank,), text, guide=GUIDE)
    replaced = tuple(rank for rank, value in enumerate(seen) if not value["same"])
    if replaced:
        text = (
            "load_full replaces parameters by new objects. An optimizer that was created before "
            "would train the old ones. Copy the values into the existing parameters."
        )
        return Diagnosis("tensors-replaced", replaced, text, guide=GUIDE)
    return None


def output_mistake(seen: Observation, right: Mapping[str, Any]) -> Diagnosis | None:
    """Return the diagnosis of the outputs of all ranks."""
    outputs = [value["output"] for value in seen]

    def agrees(wanted: Sequence[Tensor]) -> bool:
        return all(close(a, b, ROUNDINGS) for a, b in zip(outputs, wanted, strict=True))

    if agrees(right["output"]):
        return None
    wrong = tuple(
        r for r, (a, b) in enumerate(zip(outputs, right["output"], strict=True))
        if not close(a, b, ROUNDINGS)
    )  # fmt: skip
    if agrees(right["plain"]):
        text = (
            "The outputs are those of the experts, not multiplied by the router's probability. "
            "Without it, the router has no gradient."
        )
        return Diagnosis("probability-not-applied", wrong, text, guide=GUIDE)
    for rank in wrong:
        found = _wrong_token(rank, outputs[rank], right, wrong)
        if found is not None:
            return found
    where, text = last_line(seen), _first_wrong(wrong[0], outputs[wrong[0]], right)
    return Diagnosis("differs-from-single-process", wrong, text, where, GUIDE)


def _first_wrong(rank: int, output: Any, right: Mapping[str, Any]) -> str:
    """Describe the first wrong row of a rank: its factor, or that it is not an expert's result."""
    rows, wanted = array(output), right["output"][rank]
    assert rows is not None
    token = next(t for t, row in enumerate(rows) if not close(row, wanted[t], ROUNDINGS))
    plain, row = np.asarray(right["plain"][rank][token]), rows[token]
    factor, size = float(row @ plain / (plain @ plain)), float(np.abs(row).max())
    begin = f"The output of token {token} of rank {rank} is "
    if _near(row, plain * factor, size):
        probability = float(np.linalg.norm(wanted[token]) / np.linalg.norm(plain))
        return (
            f"{begin}its expert's result times {factor:.4g}. It must be multiplied by the router's "
            f"probability of this expert, {probability:.4g}: by softmax over all experts, once."
        )
    return (
        f"{begin}not a multiple of its expert's result. An expert is Linear, GELU, Linear, with "
        "the weights and biases of load_full; the router, without a bias, chooses the expert of "
        "the largest probability; nothing is added to the result."
    )


def _wrong_token(
    rank: int, output: Any, right: Mapping[str, Any], wrong: tuple[int, ...]
) -> Diagnosis | None:
    """Describe the first wrong row of a rank, if it is a known one."""
    rows, wanted = array(output), right["output"][rank]
    every = torch.cat(list(right["output"]))
    owners = [r for r, part in enumerate(right["output"]) for _ in part]
    assert rows is not None
    for token, row in enumerate(rows):
        if close(row, wanted[token], ROUNDINGS):
            continue
        same = [place for place, other in enumerate(every) if close(row, other, ROUNDINGS)]
        if not np.any(row):
            text = (
                f"The output of token {token} of rank {rank} is 0: it is lost. Every token goes to "
                "its expert, however many it gets."
            )
            return Diagnosis("tokens-lost", wrong, text, guide=GUIDE)
        if same:
            text = (
                f"The output of token {token} of rank {rank} is that of another token of rank "
                f"{owners[same[0]]}. Results come back in the order in which tokens were sent: put "
                "them back into the order of the inputs."
            )
            return Diagnosis("tokens-misplaced", wrong, text, guide=GUIDE)
        chosen = int(right["chosen"][rank][token])
        for expert, other in enumerate(right["every"][rank][token]):
            if expert != chosen and close(row, other, ROUNDINGS):
                text = (
                    f"Token {token} of rank {rank} chose expert {chosen}, but expert {expert} has "
                    "computed it. A rank must know for which of its experts each token is that "
                    "arrives."
                )
                return Diagnosis("wrong-experts", wrong, text, guide=GUIDE)
        return None
    return None


def gradient_mistake(seen: Observation, right: Mapping[str, Any]) -> Diagnosis | None:
    """Return the diagnosis of the gradients of experts, router and inputs."""
    return (
        _expert_gradients(seen, right["expert_grads"])
        or _idle_router(seen, right["router_grad"])
        or _input_gradients(seen, right["input_grad"])
        or _router_gradients(seen, right["router_grad"])
    )


def _expert_gradients(seen: Observation, right: Sequence[Mapping[str, Any]]) -> Diagnosis | None:
    size = len(seen)
    grads = {n: of for value in seen for n, of in value["expert_grads"].items()}
    got = [
        _or_zero(grads[n][name], wanted)
        for n, of in enumerate(right)
        for name, wanted in of.items()
    ]
    wanted = [value for of in right for value in of.values()]

    def agrees(factor: float) -> bool:
        return all(
            _near(g, w * factor, max(float(w.abs().max()) for w in wanted) * factor)
            for g, w in zip(got, wanted, strict=True)
        )

    if agrees(size):
        return None
    everyone = tuple(range(size))
    if not any(bool(np.any(array(g))) for g in got):
        text = (
            "The experts have no gradients: autograd does not record all-to-all. Write a "
            "torch.autograd.Function, whose backward sends the gradients the opposite way."
        )
        return Diagnosis("backward-not-reduced", everyone, text, guide=GUIDE)
    for factor, cause in (
        (1.0, "divided by the number of ranks already"),
        (float(size) ** 2, "multiplied by the number of ranks"),
    ):
        if size > 1 and agrees(factor):
            text = (
                f"The experts' gradients are {cause}. An expert's gradient is the sum over the "
                "tokens of all ranks, as they arrive in backward. Whoever averages divides it by N."
            )
            return Diagnosis("expert-gradients-wrong", everyone, text, guide=GUIDE)
    text = (
        "The experts' gradients, divided by N, differ from those of one rank with all tokens. An "
        "expert's gradient is the sum over its tokens of all ranks: send each token's gradient "
        "back to the rank that computed it, in the same order."
    )
    return Diagnosis("expert-gradients-wrong", everyone, text, guide=GUIDE)


def _idle_router(seen: Observation, right: Tensor) -> Diagnosis | None:
    """Recognise a router without gradients on every rank."""
    if not right.any() or any(np.any(array(_or_zero(v["router_grad"], right))) for v in seen):
        return None
    text = (
        "The router has no gradients: the output must be multiplied by its probability, with the "
        "probability's history."
    )
    return Diagnosis("probability-not-applied", tuple(range(len(seen))), text, guide=GUIDE)


def _input_gradients(seen: Observation, right: Sequence[Tensor]) -> Diagnosis | None:
    scale = float(torch.cat(list(right)).abs().max())
    wrong = tuple(
        rank for rank, value in enumerate(seen)
        if not _near(_or_zero(value["input_grad"], right[rank]), right[rank], scale)
    )  # fmt: skip
    if not wrong:
        return None
    rank = wrong[0]
    rows = array(_or_zero(seen[rank]["input_grad"], right[rank]))
    assert rows is not None
    swapped = all(any(_near(row, other, scale) for other in right[rank]) for row in rows)
    if swapped:
        text = (
            f"On {ranks_text(wrong)}, gradients of the inputs belong to other tokens: backward "
            "must undo the order of the tokens, too."
        )
        return Diagnosis("tokens-misplaced", wrong, text, guide=GUIDE)
    text = (
        f"On {ranks_text(wrong)}, the gradients of the inputs differ from those on one rank. They "
        "have two parts: one comes back from the expert by all-to-all, one from the router."
    )
    return Diagnosis("backward-not-reduced", wrong, text, guide=GUIDE)


def _router_gradients(seen: Observation, right: Tensor) -> Diagnosis | None:
    size, scale = len(seen), float(right.abs().max())
    mean = sum(_or_zero(value["router_grad"], right) for value in seen) / size
    if _near(mean, right, scale):
        return None
    for factor, code in ((float(size), "sum-not-mean"), (1 / size, "divided-twice")):
        if size > 1 and _near(mean, right * factor, scale * factor):
            text = (
                f"The router's gradients, averaged over the ranks, are {factor:.3g} times those of "
                "one rank. Leave them as they are: averaging is the caller's task."
            )
            return Diagnosis(code, tuple(range(size)), text, guide=GUIDE)
    text = (
        "The router's gradients, averaged over the ranks, differ from those of one rank with all "
        "tokens. They come from the probability that the output is multiplied by."
    )
    return Diagnosis("differs-from-single-process", tuple(range(size)), text, guide=GUIDE)


def sent_to_all(seen: Observation, tokens: int) -> Diagnosis | None:
    """Recognise ranks that send as many numbers to all ranks as `tokens` have in all."""
    for rank in range(len(seen)):
        for call in traffic(seen, rank):
            if call.op.startswith(TO_ALL) and numel(call) >= tokens:
                text = (
                    f"Rank {rank} calls {call.op} with {numel(call)} numbers, which is as much as "
                    "all its tokens. Send each token to the rank of its expert only, by "
                    "all-to-all."
                )
                return Diagnosis("too-many-bytes", (rank,), text, call.where, GUIDE)
    return None


def accepted_counts(
    seen: Sequence[Sequence[str | None]], counts: Sequence[int]
) -> Diagnosis | None:
    """Return the diagnosis if a number of experts that N does not divide is accepted.

    Only the last number can be divided, and must be accepted.
    """
    for rank, errors in enumerate(seen):
        for count, error in zip(counts[:-1], errors[:-1], strict=True):
            if not (error or "").startswith("ValueError"):
                text = (
                    f"{count} experts on {len(seen)} ranks give {error or 'no error'} on rank "
                    f"{rank}. They can't be split evenly: raise a ValueError."
                )
                return Diagnosis("bad-arguments-accepted", (rank,), text, guide=GUIDE)
        if errors[-1] is not None:
            text = f"{counts[-1]} experts on {len(seen)} ranks give {errors[-1]}."
            return Diagnosis("differs-from-single-process", (rank,), text, guide=GUIDE)
    return None


def balance_of(probabilities: Sequence[Tensor], chosen: Sequence[Tensor]) -> Tensor:
    """Return the loss of one process with the tokens of all ranks."""
    every, picked = torch.cat(list(probabilities)), torch.cat(list(chosen))
    experts = every.shape[1]
    fractions = picked.bincount(minlength=experts) / max(1, len(picked))
    return experts * (fractions * every.sum(0) / max(1, len(every))).sum()


def balance_mistake(
    seen: Observation, probabilities: Sequence[Tensor], chosen: Sequence[Tensor]
) -> Diagnosis | None:
    """Return the diagnosis of the loss and of the gradients of the probabilities."""
    size, everyone = len(seen), tuple(range(len(seen)))
    leaves = [part.double().requires_grad_() for part in probabilities]
    loss = balance_of(leaves, chosen)
    grads = torch.autograd.grad(loss, leaves)
    losses, right = [value["loss"] for value in seen], float(loss.detach())
    shown = [round(value, 5) for value in losses]
    if any(not math.isfinite(value) for value in losses):
        text = f"The losses are {shown}: a rank without tokens divides by 0."
        return Diagnosis("nan-loss", everyone, text, guide=GUIDE)
    if not close(losses, [right] * size, ROUNDINGS):
        if not close(losses, [losses[0]] * size, ROUNDINGS):
            text = (
                f"The losses are {shown} by rank. They must all be {right:.5f}: both the fractions "
                "and the mean probabilities are those of the tokens of all ranks."
            )
            return Diagnosis("loss-is-local", everyone, text, guide=GUIDE)
        text = (
            f"Every rank returns {shown[0]}, but E * sum(f_e * p_e) over all ranks' tokens is "
            f"{right:.5f}. Divide sums by the number of all tokens; do not average means of ranks."
        )
        means = [float(balance_of([p], [c])) for p, c in zip(probabilities, chosen, strict=True)]
        code = (
            "mean-of-means" if close(losses[0], sum(means) / size, ROUNDINGS) else "wrong-balance"
        )
        return Diagnosis(code, everyone, text, guide=GUIDE)
    lost = tuple(r for r, v in enumerate(seen) if v["gradient"] is None and len(probabilities[r]))
    if lost:
        text = (
            f"The probabilities have no gradient on {ranks_text(lost)}. The mean probabilities "
            "have one; the fractions do not."
        )
        return Diagnosis("backward-not-reduced", lost, text, guide=GUIDE)
    got = [_or_zero(v["gradient"], g) for v, g in zip(seen, grads, strict=True)]
    scale = max(float(g.abs().max()) for g in grads if len(g))

    def agrees(factor: float) -> bool:
        pairs = zip(got, grads, strict=True)
        return all(_near(a, g * factor, scale * factor) for a, g in pairs)

    if agrees(size):
        return None
    text = "The gradients, averaged over the ranks, are not those of one process. "
    if agrees(1.0):
        text += (
            "They are N times too small: averaging divides by N, and autograd does not record "
            "all_reduce. Multiply this rank's part by N."
        )
        return Diagnosis("divided-twice", everyone, text, guide=GUIDE)
    if agrees(float(size) ** 2):
        text += "They are N times too large: multiply by N only once."
        return Diagnosis("sum-not-mean", everyone, text, guide=GUIDE)
    text += (
        f"That of token t and expert e is E * f_e / (number of all tokens), on {listed(everyone)}."
    )
    return Diagnosis("wrong-balance", everyone, text, guide=GUIDE)


def _or_zero(value: Any, like: Tensor | None) -> Any:
    """Return a gradient, or zeros for none."""
    return torch.zeros_like(like) if value is None and like is not None else value


def _near(value: Any, wanted: Any, scale: float) -> bool:
    """Return whether values agree, up to roundings of the largest element of all ranks."""
    one, other = array(value), array(wanted)
    if one is None or other is None or one.shape != other.shape:
        return False
    return one.size == 0 or bool(np.max(np.abs(one - other)) <= ROUNDINGS * 2.0**-23 * scale)
