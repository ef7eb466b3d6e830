"""Attention over a sequence whose chunks are on several ranks, and the chunks that a rank holds."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from support.probes.returned import WrongReturn, tensor_returned
from support.probes.sharded import PATIENCE, Memory

Case = Mapping[str, Any]  # "q", "k", "v" and "upstream" (batch, heads, sequence, dim), "causal"


def mark_of(rank: int) -> float:
    """Return a number that marks the keys of a rank; float32 has it exactly."""
    return (165 + rank) / 1024


class Chunks(Memory):  # type: ignore[no-untyped-call]
    """Notes the largest number of ranks whose marked keys are in memory at one time."""

    def __init__(self, others: Sequence[int]) -> None:
        super().__init__()
        self._marks = torch.tensor([mark_of(rank) for rank in others], dtype=torch.float64)
        self.most = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = super().__torch_dispatch__(function, types, args, kwargs)
        if "empty" in str(function) and isinstance(result, Tensor) and result.is_floating_point():
            with _disable_current_modes(), torch.no_grad():
                result.zero_()  # new memory may have the numbers of a chunk that was freed
        self.look()
        return result

    def look(self) -> None:
        """Count now; wait a moment for gloo's threads if there are more than two."""
        found = self._marked()
        until = time.monotonic() + self._patience
        while found > max(2, self.most) and time.monotonic() < until:
            gc.collect()
            time.sleep(0.005)
            found = self._marked()
        if found > max(2, self.most):
            self._patience = PATIENCE / 10  # this is a mistake already
        self.most = max(self.most, found)

    def _marked(self) -> int:
        with _disable_current_modes(), torch.no_grad():
            seen = torch.zeros(len(self._marks), dtype=torch.bool)
            for memory in self._live():
                seen |= (memory[:, None] == self._marks).any(0)
            return int(seen.sum())


def chunk_of(tensor: Tensor, rank: int, world_size: int, turned: bool = False) -> Tensor:
    """Return a rank's chunk of the sequence as a leaf; `turned`: one that is not contiguous."""
    chunk = tensor.chunk(world_size, 2)[rank].clone()
    if turned:
        chunk = chunk.mT.contiguous().mT
    return chunk.requires_grad_()


def attended(rank: int, world_size: int, model_parallel: Any, case: Case) -> dict[str, Any]:
    """Return the output of this rank and the gradients of its inputs, None for those without."""
    given = {n: chunk_of(case[n], rank, world_size, case.get("turned", False)) for n in "qkv"}
    options = {} if case["causal"] is None else {"causal": case["causal"]}
    output = tensor_returned(model_parallel.ring_attention(**given, **options), "ring_attention")
    if output.shape != given["q"].shape:
        raise WrongReturn(
            f"ring_attention returns a tensor of shape {tuple(output.shape)}. It must have the "
            f"shape of `q`, {tuple(given['q'].shape)}."
        )
    kept: dict[str, Any] = {"output": output.detach().clone(), "q": None, "k": None, "v": None}
    if case.get("upstream") is not None and output.requires_grad:
        output.backward(  # type: ignore[no-untyped-call]
            case["upstream"].chunk(world_size, 2)[rank].contiguous()
        )
        kept |= {name: tensor.grad for name, tensor in given.items()}
    return kept


def probe_attention(
    rank: int, world_size: int, model_parallel: Any, cases: Sequence[Case]
) -> list[dict[str, Any]]:
    """Return what `attended` does, for each case."""
    return [attended(rank, world_size, model_parallel, case) for case in cases]


def probe_chunks(rank: int, world_size: int, model_parallel: Any, case: Case) -> dict[str, Any]:
    """Return the output, and the most chunks of other ranks that were in memory at one time."""
    given = {name: chunk_of(case[name], rank, world_size) for name in "qkv"}
    with Chunks([other for other in range(world_size) if other != rank]) as chunks:
        output = model_parallel.ring_attention(**given, causal=case["causal"])
        chunks.look()
    return {"output": tensor_returned(output, "ring_attention").detach(), "most": chunks.most}
