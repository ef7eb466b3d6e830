"""Gradients of ring attention: right ones pass, each known mistake is named."""

import pytest
import torch

from gradsync.records import Observation
from support.rules.attention import gradient_mistake, right_attention, scores_of

RANKS, ROWS, DIM = 3, 2, 4


@pytest.fixture
def case():
    torch.manual_seed(0)
    names = ("q", "k", "v", "upstream")
    return {n: torch.randn(1, 2, RANKS * ROWS, DIM) for n in names} | {"causal": True}


def diagnose(grads, case):
    """Return the diagnosis of gradients of the whole sequence."""
    parts = {name: grads[name].chunk(RANKS, 2) for name in "qkv"}
    values = tuple({name: part[rank] for name, part in parts.items()} for rank in range(RANKS))
    return gradient_mistake(Observation(RANKS, values, (), ("",) * RANKS, 0.1), case)


def backward(case, *, causal=True, total=True, common=True, pairs=1.0):
    """Return the gradients by autograd, of weights exp(score - constant) for some of the pairs."""
    leaves = {name: case[name].double().requires_grad_() for name in "qk"}
    scores, grad = scores_of({**case, **leaves, "causal": causal}), case["upstream"].double()
    right = scores_of(case)
    constant = right.logsumexp(-1) if total else right.amax(-1)
    weights = (scores - constant[..., None]).exp() * pairs
    of_weights = grad @ case["v"].double().mT
    if common:
        output = right.softmax(-1) @ case["v"].double()
        of_weights = of_weights - (grad * output).sum(-1, keepdim=True)
    q, k = torch.autograd.grad((weights * of_weights).sum(), list(leaves.values()))
    return {"q": q, "k": k, "v": weights.detach().mT @ grad}


def test_right_gradients_pass(case):
    assert diagnose(right_attention(case), case) is None
    assert diagnose(backward(case), case) is None


@pytest.mark.parametrize(
    ("mistake", "named"),
    [
        ({"causal": False}, "without the causal mask"),
        ({"total": False}, "whose sum is not 1"),
        ({"common": False}, "lack a part of softmax's gradient"),
    ],
)
def test_a_mistake_in_the_formulas_of_backward_is_named(case, mistake, named):
    found = diagnose(backward(case, **mistake), case)

    assert found.code == "differs-from-single-process"
    assert named in found.explanation


@pytest.mark.parametrize(
    ("change", "code", "named"),
    [
        (lambda g: {**g, "q": 2 * g["q"], "k": 2 * g["k"]}, None, "sqrt(dim) times too large"),
        (lambda g: {**g, "k": g["v"], "v": g["k"]}, None, "keys and of the values are exchanged"),
        (lambda g: {**g, "v": g["v"] / RANKS}, "divided-twice", "0.333 times"),
        (lambda g: {**g, "k": g["k"].roll(-ROWS, 2)}, "wrong-chunk", "those of rank 1's chunk"),
        (lambda g: {**g, "k": summed(g["k"])}, None, "the same on every rank"),
        (lambda g: {**g, "q": g["q"] + 1}, None, "differ from those of attention in one process"),
    ],
)
def test_a_changed_gradient_is_named(case, change, code, named):
    found = diagnose(change(backward(case)), case)

    assert found.code == (code or "differs-from-single-process")
    assert named in found.explanation


def summed(whole):
    """Return the sum of all ranks' chunks, on each rank."""
    return sum(whole.chunk(RANKS, 2)).repeat(1, 1, RANKS, 1)


def of_chunk(rank):
    """Return a mask (1, sequence) of the positions of a rank's chunk."""
    return torch.arange(RANKS * ROWS)[None] // ROWS == rank


def test_queries_that_keep_the_part_of_the_last_chunk_only(case):
    case["causal"] = False
    last = torch.cat([of_chunk((rank + 1) % RANKS).expand(ROWS, -1) for rank in range(RANKS)])

    q = backward(case, causal=False, pairs=last)["q"]

    found = diagnose({**backward(case, causal=False), "q": q}, case)
    assert found.code == "differs-from-single-process"
    assert found.ranks == (0, 1, 2)
    assert "On rank 0" in found.explanation
    assert "from the keys of rank 1" in found.explanation


def test_keys_without_the_parts_of_other_ranks_queries(case):
    own = torch.block_diag(*[torch.ones(ROWS, ROWS)] * RANKS)

    k = backward(case, pairs=own)["k"]

    found = diagnose({**backward(case), "k": k}, case)
    assert (found.code, found.ranks) == ("backward-not-reduced", (0, 1))
    assert "only the part of this rank's own queries" in found.explanation
