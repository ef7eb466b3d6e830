"""Training a language model on all ranks: it equals one process, prints once, and resumes."""

from functools import partial
from pathlib import Path

import torch.distributed as dist

from gradsync.testing import case_by_case, check, exercise, raise_mistake
from gradsync.text import ranks_text
from support.probes.language_models import draw_sequences, run_training
from support.probes.sharded_files import content_of, restore
from support.rules.sharded_training import (
    GUIDE,
    batches_mistake,
    history_mistake,
    losses_mistake,
    norm_mistake,
    scale_mistake,
    seed_mistake,
    together,
)

check_that = partial(check, guide=GUIDE)


def probe(rank, world_size, trainer, sequences, runs):
    """Train once for each run, a model's seed and the options of `train`."""
    return [
        run_training(trainer, rank, world_size, seed, sequences, **options)
        for seed, options in runs
    ]


def train(ranks, world_size, sequences, *runs):
    """Return for each run what the ranks have seen."""
    seen = ranks(probe, world_size, sequences=sequences, runs=runs)
    return case_by_case(seen, len(runs))


@exercise("phase3/train", points=2)
def test_ten_steps_equal_those_of_one_process(ranks, rng):
    """Losses and norms of ten steps on 2 ranks, over several epochs, equal one process's."""
    seed, sequences = int(rng.integers(1000)), draw_sequences(rng, 21)
    options = {"steps": 10, "batch_size": 2, "lr": 0.05}

    [seen] = train(ranks, 2, sequences, (seed, options))

    raise_mistake(history_mistake(seen, 0, 10))
    raise_mistake(batches_mistake(together(seen), 21, 2, 2))
    raise_mistake(losses_mistake(seen, seed, sequences))
    noisy = [rank for rank in range(1, 2) if seen[rank]["printed"]]
    check_that(
        not noisy and seen[0]["printed"],
        "every-rank-prints" if noisy else "wrong-output",
        f"{ranks_text(noisy or [0]).capitalize()} {'prints' if noisy else 'prints nothing'}. Rank "
        "0 alone prints.",
        noisy,
    )


@exercise("phase3/train", points=0.75)
def test_gradients_are_clipped(ranks, rng):
    """With a small max_norm, the steps are those of one process; another seed, another order."""
    seed, sequences = int(rng.integers(1000)), draw_sequences(rng, 12)
    limits = [float(limit) for limit in rng.uniform(0.02, 0.1, 3)]
    options = {"steps": 4, "batch_size": 2, "lr": 0.05}
    runs = [
        (seed, {**options, "max_norm": limit, "seed": order})
        for limit, order in zip(limits, (0, 0, 1), strict=True)
    ]

    three, one, other = (
        *train(ranks, 3, sequences, runs[0]),
        *train(ranks, 1, sequences, *runs[1:]),
    )

    for seen, limit in zip((three, one, other), limits, strict=True):
        raise_mistake(history_mistake(seen, 0, 4))
        raise_mistake(losses_mistake(seen, seed, sequences, limit))
    raise_mistake(seed_mistake(one, other))


@exercise("phase3/train", points=0.5)
def test_low_precision_learns_nearly_the_same(ranks, rng):
    """In bfloat16 and float16, losses and norms are near those in float32, and equal by rank."""
    seed, sequences = int(rng.integers(1000)), draw_sequences(rng, 12)
    options = {"steps": 6, "batch_size": 3, "lr": 0.02}

    dtypes = ("bfloat16", "float16")
    low = [(seed, {**options, "compute": compute}) for compute in dtypes]
    exact, *others = train(ranks, 2, sequences, (seed, options), *low)

    for compute, seen in zip(dtypes, others, strict=True):
        losses, wanted = ([e["loss"] for e in one[0]["history"]] for one in (seen, exact))
        off = max(abs(a - b) for a, b in zip(losses, wanted, strict=False))
        check_that(
            len(losses) == len(wanted) and off < 0.1 * wanted[0],
            "differs-from-single-process",
            f"With compute_dtype={compute}, the losses are {[round(x, 3) for x in losses]}, but "
            f"{[round(x, 3) for x in wanted]} in float32.",
            range(2),
        )
        check_that(
            losses != wanted,
            "wrong-dtype-sent",
            f"With compute_dtype={compute}, the losses are exactly those in float32: pass it on.",
            range(2),
        )
        raise_mistake(norm_mistake(seen, exact))
    raise_mistake(scale_mistake(others[1], exact))


@exercise("phase3/train", points=1.25)
def test_it_resumes_where_it_stopped(ranks, rng):
    """Stopped in its second epoch and resumed, the losses are those of one run; then nothing."""
    seed, sequences = int(rng.integers(1000)), draw_sequences(rng, 14)
    options = {"batch_size": 2, "lr": 0.05, "resume_from": "run"}
    runs = [(seed + 10 * n, {**options, "steps": steps}) for n, steps in enumerate((4, 9, 9))]

    first, second, third = train(ranks, 2, sequences, *runs)

    raise_mistake(history_mistake(first, 0, 4))
    check_that(
        not second[0]["history"] or round(second[0]["history"][0]["step"]) > 1,
        "resume-lost",
        "The second call starts again from step 0, although the folder of resume_from has a "
        "checkpoint of step 4.",
        range(2),
    )
    raise_mistake(history_mistake(second, 4, 5))
    raise_mistake(batches_mistake(together(first) + together(second), 14, 2, 2))
    raise_mistake(losses_mistake(second, seed, sequences, earlier=together(first)))
    check_that(
        not third[0]["history"],
        "samples-repeated",
        "All steps are done, but a third call trains again. `steps` includes the earlier steps.",
        range(2),
    )


def probe_stopped(rank, world_size, trainer, seed, sequences, options, content):
    """Train with a folder that has these files; return what is in it afterwards."""
    if rank == 0 and content:
        restore(Path("run"), content)
    dist.barrier()
    seen = run_training(trainer, rank, world_size, seed, sequences, **options)
    dist.barrier()
    return [seen, content_of(Path("run"))]


@exercise("phase3/train", points=0.5)
def test_it_resumes_on_another_number_of_ranks(ranks, rng):
    """Stopped on 2 ranks and resumed on 3, no sequence comes twice, and the losses go on."""
    seed, sequences = int(rng.integers(1000)), draw_sequences(rng, 40)
    options = {"batch_size": 2, "lr": 0.05, "resume_from": "run"}

    before = ranks(
        probe_stopped,
        2,
        seed=seed,
        sequences=sequences,
        options={**options, "steps": 4},
        content={},
    )
    content = before[0][1]
    after = ranks(
        probe_stopped, 3, seed=seed + 7, sequences=sequences, options={**options, "steps": 7},
        content=content,
    )  # fmt: skip

    first, second = ([value[0] for value in seen] for seen in (before, after))
    raise_mistake(history_mistake(first, 0, 4))
    check_that(
        not second[0]["history"] or round(second[0]["history"][0]["step"]) > 1,
        "resume-lost",
        "Resumed on 3 ranks, training starts again from step 0.",
        range(3),
    )
    raise_mistake(history_mistake(second, 4, 3))
    used = [n for batch in together(first) + together(second) for n in batch]
    check_that(
        len(set(used)) == len(used) == 4 * 4 + 3 * 6,
        "samples-repeated",
        f"Of 40 sequences, 4 steps on 2 ranks and 3 on 3 use {len(used)}, but only "
        f"{len(set(used))} different ones. The loader's state must be saved, and restored.",
        range(3),
    )
    raise_mistake(losses_mistake(second, seed, sequences, earlier=together(first)))
