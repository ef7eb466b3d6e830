"""Replaces the data loader file if a submission has none, so that its trainer can be judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def pack_documents(documents: Sequence[Tensor], sequence_length: int, eos: int) -> Tensor:
    stream = torch.cat([torch.cat([document, torch.tensor([eos])]) for document in documents])
    count = (len(stream) - 1) // sequence_length
    if sequence_length < 1 or count < 1:
        raise ValueError("sequence_length does not fit the documents")
    starts = [row * sequence_length for row in range(count)]
    return torch.stack([stream[start : start + sequence_length + 1] for start in starts])


def document_mask(inputs: Tensor, eos: int) -> Tensor:
    ends = torch.nn.functional.pad(inputs[:, :-1] == eos, (1, 0)).cumsum(1)
    return torch.tril(ends.unsqueeze(2) == ends.unsqueeze(1))


class TokenLoader:
    def __init__(
        self, sequences: Tensor, batch_size: int, num_replicas: int, rank: int, *, seed: int = 0
    ) -> None:
        self._sequences, self._seed = sequences, seed
        self._size, self._replicas, self._rank = batch_size, num_replicas, rank
        self._epoch = self._used = self._from = 0

    def set_epoch(self, epoch: int) -> None:
        if self._epoch != epoch:
            self._epoch, self._used, self._from = epoch, 0, 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(1_000_003 * self._seed + self._epoch)
        order = torch.randperm(len(self._sequences), generator=generator)
        rest, first = order[self._from :], self._from
        self._from = 0
        for number, batch in enumerate(rest.split(self._size * self._replicas), 1):
            if len(batch) == self._size * self._replicas:
                self._used = first + number * len(batch)
                own = self._sequences[batch[self._rank :: self._replicas]]
                yield own[:, :-1], own[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "used": self._used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch, self._used = state["epoch"], state["used"]
        self._from = self._used
