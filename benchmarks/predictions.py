"""The errors of `gradsync scale` for steps, sizes, ranks and batches that it did not measure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW

from benchmarks.figure import Figure, seconds
from benchmarks.plain import on_plain_ranks
from gradsync.cores import available_cores
from gradsync.scale.costs import Compute, crowding
from gradsync.scale.fitting import BatchTiming, fit_compute
from gradsync.scale.measuring import Plan
from gradsync.scale.study import Simulated, Study, study_machine
from gradsync.scale.tables import GOAL
from gradsync.scale.transformers import WAYS, Transformer

LAYERS, WIDTH, TOKENS = 4, 128, 128
BATCHES = (1, 4, 16)  # of the transformer, on one rank
BATCH, STEPS = 8, 5  # samples on each rank, and measured steps
RANKS = (2, 4)


def figures() -> Iterator[Figure]:
    """Measure this machine, fit a part of the times, and compare the rest with predictions."""
    found = study_machine(Plan(), available_cores(), 64, Simulated(), lambda _: None)
    for prediction in found.fit.predictions:
        yield _figure(prediction.what, prediction.count, prediction.median_error)
    for way in STEPS_OF:
        [timings] = on_plain_ranks(alone, 1, way, phase=3)
        compute = fit_compute([BatchTiming(*timing) for timing in timings])
        errors = []
        for ranks in RANKS:
            measured = max(on_plain_ranks(step_seconds, ranks, way, phase=3))
            errors.append(abs(predicted(found, compute, way, ranks) / measured - 1))
        what = f"steps of a transformer on {RANKS[0]} and {RANKS[1]} ranks, {way}"
        yield _figure(what, len(errors), statistics.median(errors))


def _figure(what: str, count: int, error: float) -> Figure:
    ours = f"{error:.0%} off (median of {count})"
    return Figure(f"prediction of {what}", ours, "", None, f"{GOAL:.0%}", error <= GOAL)


def predicted(study: Study, compute: Compute, way: str, ranks: int) -> float:
    """Return the seconds for a step on ranks that share this machine's cores."""
    network = study.fit.network
    slower = study.slower * crowding(ranks, network.cores)
    here = replace(
        compute,
        fixed=slower * compute.fixed,
        per_sample=slower * compute.per_sample,
        update=slower * compute.update,
    )
    matrices = 4 * LAYERS + 2  # the solution gathers each by itself
    parameters = 12 * LAYERS * WIDTH**2 + 2 * 256 * WIDTH
    head = 256 / 2 / (6 * WIDTH + TOKENS)  # multiplications for a token, in a layer's
    model = Transformer(LAYERS, WIDTH, TOKENS, here, parameters, matrices / LAYERS, head)
    cost = WAYS[way](model, network, BATCH, ranks)
    assert cost is not None
    return cost.seconds


def alone(way: str) -> list[tuple[int, float, float, float]]:
    """Return the fields of a `BatchTiming` for each batch size, on one rank.

    For ring attention, it is that of a ring of one rank, which has no fused kernel either.
    """
    if STEPS_OF[way] is ring_step:
        attend_in_a_ring()
    model, timings = transformer(), []
    optimizer = AdamW(model.parameters())
    for batch in BATCHES:
        tokens = torch.randint(256, (batch, TOKENS + 1))
        rounds = []
        for _ in range(STEPS + 1):
            optimizer.zero_grad()
            losses: list[Tensor] = []
            forward = seconds(lambda: losses.append(loss_of(model, tokens)))  # noqa: B023
            rounds.append((forward, seconds(losses[0].backward), seconds(optimizer.step)))
        timings.append((batch, *map(statistics.median, zip(*rounds[1:], strict=True))))
    return timings


def step_seconds(way: str) -> float:
    """Return this rank's median seconds for a step with the solution."""
    step = STEPS_OF[way]()
    step()
    taken = []
    for _ in range(STEPS):
        dist.barrier()
        taken.append(seconds(step))
    return statistics.median(taken)


def transformer() -> nn.Module:
    from model import Transformer as Model

    torch.manual_seed(0)
    return Model(WIDTH, LAYERS)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def sharded_step() -> Callable[[], object]:
    from template_trainer import FullyShardedModule

    model = FullyShardedModule(transformer())
    optimizer = AdamW(model.parameters())
    tokens = torch.randint(256, (BATCH, TOKENS + 1))

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model, tokens).backward()
        model.finish()
        optimizer.step()

    return step


def pipeline_step() -> Callable[[], object]:
    from template_model_parallel import pipeline_1f1b

    # isort: split
    from production import Stage  # which puts the templates first in `sys.path`

    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage = Stage(transformer(), rank, ranks)
    optimizer = AdamW(stage.parameters())
    tokens = torch.randint(256, (BATCH * ranks, TOKENS + 1))
    parts = tokens.chunk(4 * ranks)  # microbatches, as many as are predicted
    batch = [(part[:, :-1], part[:, 1:]) for part in parts]

    def mean(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return lambda: pipeline_1f1b(stage, batch, mean, optimizer)


def ring_step() -> Callable[[], object]:
    """Attend in a ring; each rank rotates its chunk from position 0, which takes the same time."""
    attend_in_a_ring()
    ranks, model = dist.get_world_size(), transformer()
    optimizer = AdamW(model.parameters())
    tokens = torch.randint(256, (BATCH * ranks, TOKENS // ranks + 1))

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model, tokens).backward()
        flat = torch.cat([param.grad.flatten() for param in model.parameters()])
        dist.all_reduce(flat)
        optimizer.step()

    return step


def attend_in_a_ring() -> None:
    """Let the model call the solution's attention, in this process."""
    from template_model_parallel import ring_attention

    F.scaled_dot_product_attention = lambda q, k, v, **_: ring_attention(q, k, v)


STEPS_OF = {"ZeRO-3": sharded_step, "pipeline": pipeline_step, "ring attention": ring_step}
