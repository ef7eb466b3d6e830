"""A few steps of a trainer, for `gradsync trace` to observe."""

from __future__ import annotations

from typing import Any

from support.probes import Info

STEPS, BATCH = 4, 50  # on each rank: enough to show a pattern, few enough to be readable


def inputs_of(world_size: int) -> dict[str, Any]:
    """Return the inputs of `run` for some steps on handwritten digits."""
    from gradsync.data import digits

    some = digits().train.first(STEPS * BATCH * world_size)
    return {"images": some.images.numpy(), "labels": some.labels.numpy()}


def run(rank: int, world_size: int, trainer: Any, images: Any, labels: Any) -> None:
    """Train the small CNN for one short epoch; each rank calls this."""
    import torch
    from torch.utils.data import Subset, TensorDataset

    from gradsync.model import SmallCNN

    known = TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
    few = Subset(known, range(world_size))
    trainer.train(
        Info(rank, world_size), SmallCNN(), known, few, epochs=1, batch_size=BATCH, lr=0.1
    )
