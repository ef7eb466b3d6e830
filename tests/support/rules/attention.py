"""Mistakes in ring attention: in the weights, in the gradients, and in what the ranks exchange."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradsync.ranks.deadlocks.calls import numel
from gradsync.records import Collective, Diagnosis, Observation
from gradsync.testing.traffic import traffic
from gradsync.testing.values import FLOAT32, array, close
from gradsync.text import counted, listed, ranks_text
from support.rules.wrong_results import last_line

GUIDE = "Long sequences"
SLACK = 16  # numbers beside each chunk, for a description of it
SMALL = 1e-6  # of a weight
ROUNDINGS = 128.0  # 1e-5 of the largest sum of terms
LARGE = 4096.0  # for scores of several hundreds, which float32 has to 3e-5
NAMES = {"q": "queries", "k": "keys", "v": "values"}


def scores_of(case: Mapping[str, Any]) -> Tensor:
    """Return the scores (batch, heads, query, key) in float64; -inf for hidden ones."""
    q, k = (case[name].double() for name in "qk")
    scores: Tensor = q @ k.mT / math.sqrt(q.shape[-1])
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    masked: Tensor = scores.masked_fill(hidden, -math.inf)
    return masked if case["causal"] is not False else scores


def right_attention(case: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the output of the whole sequence and the gradients of the inputs, in one process."""
    leaves = {name: case[name].double().requires_grad_() for name in "qkv"}
    output = scores_of({**case, **leaves}).softmax(-1) @ leaves["v"]
    found = {"output": output.detach()}
    if case.get("upstream") is not None:
        grads = torch.autograd.grad(output, list(leaves.values()), case["upstream"].double())
        found |= dict(zip("qkv", grads, strict=True))
    return found


def largest_sums(case: Mapping[str, Any]) -> dict[str, float]:
    """Return, for each of `right_attention`, the largest sum of its terms without their signs.

    Rounding errors are relative to this sum, whose terms may cancel each other in the result.
    """
    weights, scale = scores_of(case).softmax(-1), case["q"].shape[-1] ** -0.5
    q, k, v = (case[name].double().abs() for name in "qkv")
    output = weights @ v
    sums = {"output": output}
    if case.get("upstream") is not None:
        upstream = case["upstream"].double().abs()
        common = (upstream * output).sum(-1, keepdim=True)
        scores = weights * (upstream @ v.mT + common) * scale
        sums |= {"q": scores @ k, "k": scores.mT @ q, "v": weights.mT @ upstream}
    return {name: float(terms.max()) for name, terms in sums.items()}


def shares(case: Mapping[str, Any], world_size: int, name: str) -> list[tuple[Tensor, ...]]:
    """Return a gradient in the parts that add up to it: by source, then by rank.

    The source is the rank of the keys for the queries' gradient, or else that of the queries.
    """
    found = []
    for rank in range(world_size):
        only = torch.zeros(case["q"].shape[2])
        only.chunk(world_size)[rank].fill_(1.0)
        mask = only if name == "q" else only[:, None]  # of columns: keys, or of rows: queries
        found.append(_backward(case, None, mask)[name].chunk(world_size, 2))
    return found


@dataclass(frozen=True)
class Weights:
    """The weights (batch, heads, query, key) that the ranks' queries give to all keys."""

    seen: list[NDArray[Any]]  # by rank
    wanted: list[NDArray[Any]]

    @property
    def size(self) -> int:
        return len(self.seen)

    @property
    def wrong(self) -> tuple[int, ...]:
        pairs = enumerate(zip(self.seen, self.wanted, strict=True))
        return tuple(rank for rank, (w, p) in pairs if not close(w, p, ROUNDINGS))


def weights_mistake(seen: Observation, case: Mapping[str, Any]) -> Diagnosis | None:
    """Return the diagnosis of outputs that are the weights of all keys: the values are one-hot."""
    whole = scores_of(case).softmax(-1)
    parts = [np.asarray(part) for part in whole.chunk(len(seen), 2)]
    weights = Weights([np.asarray(v["output"])[..., : whole.shape[-1]] for v in seen], parts)
    if not weights.wrong:
        return None
    if broken := [r for r, w in enumerate(weights.seen) if not np.isfinite(w).all()]:
        return nan_outputs(broken)
    if found := _other_scale(weights, case) or _own_values(weights):
        return found
    if case["causal"] is not False and (found := _sees_later(weights)):
        return found
    return _unseen(weights) or _not_combined(weights) or _other_weights(weights)


def _other_scale(weights: Weights, case: Mapping[str, Any]) -> Diagnosis | None:
    """Recognise the weights of scores that are multiplied by another number than 1/sqrt(dim)."""
    scores, dim = scores_of(case), case["q"].shape[-1]
    logs = torch.from_numpy(np.concatenate(weights.seen, 2)).double().clamp(min=1e-30).log()
    both = torch.stack([logs, scores]).masked_fill(scores.isinf(), math.nan)
    seen, right = both - both.nanmean(-1, keepdim=True)  # softmax ignores a common summand
    factor = float((seen * right).nansum() / (right * right).nansum())
    if not _agree(weights.seen, (scores * factor).softmax(-1).chunk(weights.size, 2)):
        return None
    text = (
        f"The weights are those of q @ k multiplied by {factor / math.sqrt(dim):.4g}. With dim = "
        f"{dim}, it must be divided by sqrt(dim): multiplied by {1 / math.sqrt(dim):.4g}."
    )
    return Diagnosis("differs-from-single-process", weights.wrong, text, guide=GUIDE)


def _own_values(weights: Weights) -> Diagnosis | None:
    """Recognise a rank that uses its own values for the keys of every rank."""
    for rank, wanted in enumerate(weights.wanted):
        chunks = np.split(wanted, weights.size, -1)
        folded = [np.zeros_like(chunk) for chunk in chunks]
        folded[rank] = np.sum(chunks, 0)
        if not close(weights.seen[rank], np.concatenate(folded, -1), ROUNDINGS):
            return None
    text = (
        "The weights are right, but every rank applies them to its own values: those of other "
        "ranks are never used. Values travel with their keys."
    )
    return Diagnosis("chunks-missing", weights.wrong, text, guide=GUIDE)


def _sees_later(weights: Weights) -> Diagnosis | None:
    """Recognise a weight of a key that is later than the query."""
    rows = weights.seen[0].shape[2]
    for rank, seen in enumerate(weights.seen):
        for row, key in np.argwhere(np.abs(seen).max((0, 1)) > SMALL):
            if key > rank * rows + row:
                text = (
                    f"On rank {rank}, the query at position {rank * rows + row} of the whole "
                    f"sequence gives weight to the key at position {key}, which is later and is on "
                    f"rank {key // rows}. Decide by positions in the whole sequence, or by the "
                    "rank that a chunk comes from: chunks of earlier ranks are all visible, those "
                    "of later ranks are not. If each rank sends to the next one, it has the chunk "
                    "of rank - s after s exchanges."
                )
                return Diagnosis("future-visible", weights.wrong, text, guide=GUIDE)
    return None


def _unseen(weights: Weights) -> Diagnosis | None:
    """Recognise a rank whose queries give no weight to another rank's keys."""
    for rank in weights.wrong:
        chunks = (np.split(w[rank], weights.size, -1) for w in (weights.seen, weights.wanted))
        hidden = [
            other
            for other, (seen, wanted) in enumerate(zip(*chunks, strict=True))
            if wanted.max() > SMALL and np.abs(seen).max() <= SMALL
        ]
        if hidden:
            text = (
                f"The queries of rank {rank} give no weight to keys of {ranks_text(hidden)}, which "
                "they must see. After N - 1 exchanges each rank has had each chunk once, its own "
                "included."
            )
            return Diagnosis("chunks-missing", (rank,), text, guide=GUIDE)
    return None


def _not_combined(weights: Weights) -> Diagnosis | None:
    """Recognise weights that are right within each chunk only, or do not add up to 1."""
    for rank in weights.wrong:
        sums = weights.seen[rank].sum(-1)
        if not close(sums, np.ones_like(sums), ROUNDINGS):
            worst = float(sums.flat[np.abs(sums - 1).argmax()])
            text = (
                f"On rank {rank}, the weights of a query add up to {worst:.4g}, not to 1. Divide "
                "once, at the end, by the sum over all chunks. When the maximum grows, multiply "
                "the sums so far by exp(old maximum - new maximum), the mixed values as well."
            )
            return Diagnosis("chunks-not-combined", weights.wrong, text, guide=GUIDE)
        chunks = (np.split(w[rank], weights.size, -1) for w in (weights.seen, weights.wanted))
        for seen, wanted in zip(*chunks, strict=True):
            scaled = seen * wanted.sum(-1, keepdims=True), wanted * seen.sum(-1, keepdims=True)
            if not close(*scaled, ROUNDINGS):
                return None
    text = (
        f"On {ranks_text(weights.wrong)}, the weights are right within each chunk, but not between "
        "chunks. A chunk's weight is its sum of exp(score), relative to a maximum that is the same "
        "for all chunks."
    )
    return Diagnosis("chunks-not-combined", weights.wrong, text, guide=GUIDE)


def _other_weights(weights: Weights) -> Diagnosis:
    text = (
        f"On {ranks_text(weights.wrong)}, the weights of the keys differ from those of attention "
        "over the whole sequence. Keep the keys and the values of a chunk together."
    )
    return Diagnosis("differs-from-single-process", weights.wrong, text, guide=GUIDE)


def nan_outputs(ranks: Sequence[int]) -> Diagnosis:
    text = (
        f"On {ranks_text(ranks)}, outputs or gradients are infinite or NaN. Subtract the largest "
        "score so far before you take exp, and take care where it is still -inf: -inf - (-inf) is "
        "NaN."
    )
    return Diagnosis("nan-attention", tuple(ranks), text, guide=GUIDE)


def output_mistake(
    seen: Observation, case: Mapping[str, Any], roundings: float = ROUNDINGS
) -> Diagnosis | None:
    """Return the diagnosis of outputs that differ from those of one process."""
    allowed = roundings * FLOAT32 * largest_sums(case)["output"]
    return _different(seen, right_attention(case)["output"], "output", "the outputs", allowed)


def _different(
    seen: Observation, whole: Tensor, name: str, what: str, allowed: float
) -> Diagnosis | None:
    wrong = _wrong_ranks([value[name] for value in seen], whole, allowed)
    if not wrong:
        return None
    if broken := [r for r in wrong if not np.isfinite(np.asarray(seen[r][name])).all()]:
        return nan_outputs(broken)
    text = f"On {ranks_text(wrong)}, {what} differ from those of attention in one process."
    return Diagnosis("differs-from-single-process", tuple(wrong), text, last_line(seen), GUIDE)


def _wrong_ranks(values: Sequence[Any], whole: Tensor, allowed: float) -> list[int]:
    """Return the ranks of whose chunk an element differs by more than `allowed`."""
    wrong = []
    for rank, part in enumerate(whole.chunk(len(values), 2)):
        value = array(values[rank])
        if (
            value is None
            or value.shape != tuple(part.shape)
            or not np.max(np.abs(value - np.asarray(part))) <= allowed
        ):
            wrong.append(rank)
    return wrong


def gradient_mistake(
    seen: Observation, case: Mapping[str, Any], roundings: float = ROUNDINGS
) -> Diagnosis | None:
    """Return the diagnosis of the gradients of the queries, keys and values."""
    for name in "qkv":
        lost = tuple(rank for rank, value in enumerate(seen) if value[name] is None)
        if lost:
            text = (
                f"The {NAMES[name]} have no gradient on {ranks_text(lost)}: autograd does not "
                "record what ranks send. Write a torch.autograd.Function, in whose backward the "
                "keys and values go round again."
            )
            return Diagnosis("backward-not-reduced", lost, text, guide=GUIDE)
    wanted, sums = right_attention(case), largest_sums(case)
    if known := _known_backward({n: [value[n] for value in seen] for n in "qkv"}, case):
        return Diagnosis(
            "differs-from-single-process", tuple(range(len(seen))), known, last_line(seen), GUIDE
        )
    for name in "vkq":
        allowed = roundings * FLOAT32 * sums[name]
        values = [value[name] for value in seen]
        parts = wanted[name].chunk(len(seen), 2)
        if not _wrong_ranks(values, wanted[name], allowed):
            continue
        what = f"the gradients of the {NAMES[name]}"
        found = None
        if len(seen) > 1:
            found = _not_sent_home(values, parts, name) or _incomplete(
                values, parts, shares(case, len(seen), name), name
            )
        found = found or _multiplied(values, parts, what)
        return found or _different(seen, wanted[name], name, what, allowed)
    return None


# A mistake in backward, and how a message describes it.
BACKWARDS = {
    "mask": (
        "The gradients are those of weights without the causal mask. Hide the same scores in "
        "backward as in forward, before exp."
    ),
    "causal": (
        "With causal=False, the gradients are those of weights with the causal mask. Backward must "
        "hide scores only if forward did."
    ),
    "total": (
        "The gradients are those of exp(score - largest score), whose sum is not 1. In backward, a "
        "weight is exp(score - m - ln l): keep m + ln l of forward."
    ),
    "common": (
        "The gradients of the queries and keys lack a part of softmax's gradient: that of a score "
        "is weight * (g - sum(weight * g)), with g = grad @ v. The sum over all keys of the whole "
        "sequence is sum(grad * output)."
    ),
    "scale": (
        "The gradients of the queries and keys are sqrt(dim) times too large: the scores were "
        "divided by sqrt(dim), so divide their gradients, too."
    ),
    "order": "The gradients of the keys and of the values are exchanged.",
}


def _known_backward(found: Mapping[str, list[Any]], case: Mapping[str, Any]) -> str | None:
    """Describe the mistake in backward that gives these gradients, if it is a known one."""

    def agrees(grads: Mapping[str, Tensor]) -> bool:
        return all(_agree(found[n], grads[n].chunk(len(found[n]), 2)) for n in "qkv")

    if agrees(_backward(case, None)):
        return None
    known = (text for mistake, text in BACKWARDS.items() if agrees(_backward(case, mistake)))
    return next(known, None)


def _backward(
    case: Mapping[str, Any], mistake: str | None, part: Tensor | float = 1.0
) -> dict[str, Tensor]:
    """Return the gradients of the inputs with this mistake in the formulas of backward.

    A part of (query, key), if any, is 1 for the pairs of which the gradients consist.
    """
    q, k, v, grad = (case[name].double() for name in ("q", "k", "v", "upstream"))
    scores, scale = scores_of(case), q.shape[-1] ** -0.5
    output = scores.softmax(-1) @ v
    log_total = scores.amax(-1) if mistake == "total" else scores.logsumexp(-1)
    if mistake in ("mask", "causal"):
        scores = scores_of({**case, "causal": mistake == "causal"})
    weights = (scores - log_total[..., None]).exp() * part
    common = 0.0 if mistake == "common" else (grad * output).sum(-1, keepdim=True)
    inner = weights * (grad @ v.mT - common) * (1.0 if mistake == "scale" else scale)
    grads = {"q": inner @ k, "k": inner.mT @ q, "v": weights.mT @ grad}
    if mistake == "order":
        grads["k"], grads["v"] = grads["v"], grads["k"]
    return grads


def _agree(values: Sequence[Any], parts: Sequence[Tensor], factor: float = 1.0) -> bool:
    return all(close(v, p * factor, ROUNDINGS) for v, p in zip(values, parts, strict=True))


def _not_sent_home(values: Sequence[Any], parts: Sequence[Tensor], name: str) -> Diagnosis | None:
    """Recognise gradients of another rank's chunk, or the same ones on every rank."""
    size, everyone = len(parts), tuple(range(len(parts)))
    what = f"the gradients of the {NAMES[name]}"
    for shift in range(1, size):
        if _agree(values, [parts[(rank + shift) % size] for rank in everyone]):
            text = (
                f"On rank 0, {what} are those of rank {shift}'s chunk. After N - 1 exchanges a "
                "chunk's gradients are one rank before their home: they need one exchange more."
            )
            return Diagnosis("wrong-chunk", everyone, text, guide=GUIDE)
    if _agree(values, [torch.as_tensor(values[0])] * size) and np.any(array(values[0])):
        text = (
            f"{what.capitalize()} are the same on every rank, but each rank has {NAMES[name]} of "
            "its own. Add up the parts that belong to one chunk, not those of different chunks."
        )
        return Diagnosis("differs-from-single-process", everyone, text, guide=GUIDE)
    return None


def _incomplete(
    values: Sequence[Any], parts: Sequence[Tensor], by_source: Sequence[Sequence[Tensor]], name: str
) -> Diagnosis | None:
    """Recognise gradients that lack the parts of some ranks, and describe those of one rank."""
    size, other = len(parts), "keys" if name == "q" else "queries"
    wrong = [r for r in range(size) if not close(values[r], parts[r], ROUNDINGS)]
    had: dict[int, tuple[int, ...]] = {}
    for rank in wrong:
        for some in itertools.chain.from_iterable(
            itertools.combinations(range(size), count) for count in range(1, size)
        ):
            if close(values[rank], sum(by_source[source][rank] for source in some), ROUNDINGS):
                had[rank] = some
                break
        else:
            return None
    if not wrong:
        return None
    if name != "q" and all(some == (rank,) for rank, some in had.items()):
        text = (
            f"The gradients of the {NAMES[name]} have only the part of this rank's own queries. "
            "Other ranks use these, too: let the gradients travel with the chunk, add to them on "
            "each rank, and send them home at the end."
        )
        return Diagnosis("backward-not-reduced", tuple(wrong), text, guide=GUIDE)
    rank = wrong[0]
    text = (
        f"On rank {rank}, the gradients of the {NAMES[name]} have only the part that comes from "
        f"the {other} of {ranks_text(had[rank])}. Each of the {size} chunks adds a part: keep the "
        "sum of all of them."
    )
    return Diagnosis("differs-from-single-process", tuple(wrong), text, guide=GUIDE)


def _multiplied(values: Sequence[Any], parts: Sequence[Tensor], what: str) -> Diagnosis | None:
    """Recognise gradients that are multiplied or divided by the number of ranks."""
    size = len(parts)
    for factor, code in ((float(size), "sum-not-mean"), (1 / size, "divided-twice")):
        if size > 1 and _agree(values, parts, factor):
            text = (
                f"{what.capitalize()} are {factor:.3g} times those of one process. The ranks split "
                "one sequence: its gradients are sums over the ranks, neither averaged nor counted "
                "more than once."
            )
            return Diagnosis(code, tuple(range(size)), text, guide=GUIDE)
    return None


def exchange_mistake(seen: Observation, chunk: int) -> Diagnosis | None:
    """Return the diagnosis of what the ranks exchange in one forward.

    Args:
        seen: the run, with what `probe_chunks` returns.
        chunk: the number of elements of a chunk of keys and values together.
    """
    size = len(seen)
    holding = [rank for rank, value in enumerate(seen) if value["most"] > 2]
    if holding:
        most = max(value["most"] for value in seen)
        text = (
            f"On {ranks_text(holding)}, the keys of up to {most} other ranks are in memory at one "
            "time. That is what long sequences have no room for. Use a chunk when it arrives, "
            "pass it on and let go of it before the next one is received: of views and of handles "
            "of messages, too. Keep none for backward."
        )
        return Diagnosis("gathered-too-long", tuple(holding), text, last_line(seen), GUIDE)
    sent = []
    for rank in range(size):
        near = {(rank + 1) % size, (rank - 1) % size, rank}
        calls = [call for call in traffic(seen, rank) if call.op != "recv"]
        for call in calls:
            if numel(call) > SLACK and not _peers(call) <= near:
                to = f"to {ranks_text(sorted(_peers(call) - {rank}))}"
                text = (
                    f"Rank {rank} calls {call.op}, which sends data {to}. In a ring, each rank "
                    "sends to one neighbour, and receives from the other."
                )
                return Diagnosis("not-a-ring", (rank,), text, call.where, GUIDE)
        sent.append(sum(map(numel, calls)))
    most = (size - 1) * (chunk + SLACK)
    if guilty := [rank for rank, number in enumerate(sent) if number > most]:
        text = (
            f"In one forward the ranks send {listed(sent)} numbers. A chunk of keys and values has "
            f"{chunk}, and {counted(size - 1, 'exchange')} bring every chunk to every rank, with "
            f"{(size - 1) * chunk} numbers. The chunk need not come home in the forward."
        )
        return Diagnosis("too-many-bytes", tuple(guilty), text, last_line(seen), GUIDE)
    return None


def _peers(call: Collective) -> set[int]:
    """Return the ranks to which a call sends data."""
    if call.op == "send":
        return {call.peer} if call.peer is not None else set()
    if call.sends:
        return {rank for rank, n in zip(call.members, call.sends, strict=True) if n}
    return set(call.members)
