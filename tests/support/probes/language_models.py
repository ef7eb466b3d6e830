"""A small language model, and training runs of it that record their batches and optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from support.probes import Info
from support.probes.printing import printed
from support.probes.returned import WrongReturn, numbers_of
from support.probes.seeding import seed_weights

VOCABULARY, WIDTH, LENGTH = 13, 5, 4
KEYS = ("step", "loss", "grad_norm", "tokens_per_second")


class LanguageModel(nn.Module):
    """Maps tokens (batch, sequence) to logits; it records these tokens and its gradients' sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.hidden = nn.Linear(WIDTH, 7)
        self.head = nn.Linear(7, VOCABULARY, bias=False)
        self.given: list[Tensor] = []
        self.upstream: list[float] = []  # the largest gradient of the logits in each backward

    def forward(self, tokens: Tensor) -> Tensor:
        if self.training:
            self.given.append(tokens.detach().clone())
        logits: Tensor = self.head(torch.tanh(self.hidden(self.norm(self.embedding(tokens)))))
        if logits.requires_grad:
            logits.register_hook(  # type: ignore[no-untyped-call]
                lambda grad: self.upstream.append(float(grad.abs().max()))
            )
        return logits


def language_model(seed: int) -> LanguageModel:
    seed_weights(seed)
    return LanguageModel()


def draw_sequences(rng: Any, count: int) -> Any:
    """Draw sequences with different inputs, so that a batch shows which they are."""
    while True:
        rows = rng.integers(0, VOCABULARY, (count, LENGTH + 1))
        if len({tuple(row[:-1]) for row in rows.tolist()}) == count:
            return rows


@contextmanager
def steps_of_optimizers() -> Iterator[list[dict[str, Any]]]:
    """Record the class and the settings of the optimizer, and its gradients, in each step."""
    steps: list[dict[str, Any]] = []

    def note(optimizer: torch.optim.Optimizer, *_: object) -> None:
        group = optimizer.param_groups[0]
        names = ("lr", "betas", "eps", "weight_decay")
        grads = [p.grad for one in optimizer.param_groups for p in one["params"]]
        squares = sum(float(g.double().square().sum()) for g in grads if g is not None)
        settings = {name: group.get(name) for name in names}
        steps.append({"class": type(optimizer).__name__, "squares": squares, **settings})

    hook = register_optimizer_step_pre_hook(note)
    try:
        yield steps
    finally:
        hook.remove()


def run_training(
    trainer: Any, rank: int, world_size: int, seed: int, sequences: Any, /, **options: Any
) -> dict[str, Any]:
    """Call the submission's `train`; return its history, batches, optimizers and output."""
    model = language_model(seed + rank)
    if compute := options.pop("compute", None):
        options["compute_dtype"] = getattr(torch, compute)
    with printed() as lines, steps_of_optimizers() as optimizers:
        history = trainer.train(
            Info(rank, world_size), model, torch.from_numpy(sequences), **options
        )
    if not isinstance(history, list):
        raise WrongReturn(f"train returns a {type(history).__name__}. It must return a list.")
    return {
        "history": [_entry(entry) for entry in history],
        "given": [_numbers(tokens, sequences) for tokens in model.given],
        "upstream": model.upstream[0] if model.upstream else 0.0,
        "optimizers": optimizers,
        "lr": options["lr"],
        "printed": list(lines),
    }


def _entry(entry: Any) -> dict[str, float]:
    return numbers_of(entry, KEYS, "an entry of the history")


def _numbers(tokens: Tensor, sequences: Any) -> list[int]:
    """Return which sequences have these inputs; -1 for none."""
    known = {tuple(row[:-1]): index for index, row in enumerate(sequences.tolist())}
    return [known.get(tuple(row), -1) for row in tokens.tolist()]
