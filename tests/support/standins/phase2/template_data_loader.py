"""Replaces the data loader file if a submission has none, so that its trainer can be judged.

It uses torch's own sampler and splits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DistributedSampler, Sampler


class ResumableDistributedSampler(Sampler[int]):
    def __init__(self, dataset: Any, num_replicas: int, rank: int, **options: Any) -> None:
        self._all: DistributedSampler[int] = DistributedSampler(
            dataset, 1, 0, **{**options, "drop_last": False}
        )
        self._place = {"num_replicas": num_replicas, "rank": rank, "shuffle": False}
        self._place["drop_last"] = options.get("drop_last", False)
        self._seen = 0

    def set_epoch(self, epoch: int) -> None:
        self.resume(epoch, self._seen if epoch == self._all.epoch else 0)

    def resume(self, epoch: int, samples_seen: int) -> None:
        self._all.set_epoch(epoch)
        self._seen = samples_seen

    def __iter__(self) -> Iterator[int]:
        share = self._share()
        rest = list(self._all)[self._seen :]
        self._seen = 0
        return iter([rest[position] for position in share])

    def __len__(self) -> int:
        return len(self._share())

    def _share(self) -> list[int]:
        left = len(self._all.dataset) - self._seen  # type: ignore[arg-type]
        return list(DistributedSampler(range(left), **self._place)) if left > 0 else []  # type: ignore[arg-type]


def shard_without_padding(num_samples: int, num_replicas: int, rank: int) -> range:
    part = torch.arange(num_samples).tensor_split(num_replicas)[rank].tolist()
    return range(part[0], part[-1] + 1) if part else range(0)


def split_microbatches(
    batch: Sequence[torch.Tensor], num_microbatches: int
) -> list[tuple[torch.Tensor, ...]]:
    parts = [tensor.tensor_split(num_microbatches) for tensor in batch]
    return list(zip(*parts, strict=True))
