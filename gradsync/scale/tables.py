"""The results of a study as tables for the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from rich.table import Table

from gradsync.scale.costs import Network
from gradsync.scale.mine import TURNS, Comparison, StepFigures
from gradsync.scale.strategies import GOOD
from gradsync.scale.study import Split, Study, predicted_step
from gradsync.scale.transformers import Transformer, bubble, microbatches

GOAL = 0.25  # median error
SHOWN, MANY = 4, (2, 8, 64)  # ranks of the transformer's tables
IDLE = 0.5  # processes on each core; with more, the machine counts as busy


def tables(study: Study) -> Iterator[Table | str]:
    """Yield the tables in reading order, with sentences between them."""
    yield _all_reduces(study)
    yield _constants(study)
    if study.steps:
        yield _steps(study)
    if study.fit.predictions:
        yield _errors(study)
    yield _forecasts(study)
    yield _paying(study)
    yield _answer(study)
    if study.transformer:
        yield _ways(study, study.transformer)
        yield _splits(study)
    else:
        yield (
            "Pass --transformer LAYERS WIDTH TOKENS, too, to compare ways to split your model: "
            "ZeRO-1 to 3, tensor, pipeline and ring parallelism."
        )
    if warning := _busy(study):
        yield warning


def averagers(comparison: Comparison) -> Iterator[Table | str]:
    """Yield the table of a learner's averagers and DDP, and a line for each failure."""
    table = _table(
        "Averaging gradients: a training step on 2 ranks",
        *("averager", "step", "collectives", "bytes", "hidden"),
    )
    table.add_row(comparison.reference.name, *_cells(comparison.reference))
    for each in comparison.mine:
        table.add_row(each.figures.name, *_cells(each.figures, each.ratios))
    table.caption = (
        f"×: compared with {comparison.reference.name}, median and range of {TURNS} turns. Hidden: "
        "the part of the communication time in which the rank did not wait. All times include the "
        "recording of each collective. These figures are not graded."
    )
    yield table
    for name, why in comparison.failures.items():
        yield f"{name} was not measured. {why}"


def _cells(found: StepFigures, ratios: Sequence[float] = ()) -> Iterator[str]:
    step = shown(found.seconds)
    if ratios:
        low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
        step += f", {middle:.2f}× ({low:.2f} to {high:.2f})"
    yield step
    yield f"{found.collectives}"
    yield bytes_shown(found.bytes)
    yield "" if found.hidden is None else f"{found.hidden:.0%}"


def _all_reduces(study: Study) -> Table:
    ranks = sorted({timing.ranks for timing in study.fit.timings})
    table = _table(
        f"All-reduce, {study.source}: measured / predicted", "size", *(f"{n} ranks" for n in ranks)
    )
    by_case = {(timing.size, timing.ranks): timing for timing in study.fit.timings}
    fitted = set(study.fit.fitted)
    for size in sorted({timing.size for timing in study.fit.timings}):
        cells = []
        for number in ranks:
            timing = by_case.get((size, number))
            if timing is None:
                cells.append("")
                continue
            predicted = shown(study.fit.network.all_reduce(size, number))
            style = "dim" if timing in fitted else "bold"
            cells.append(f"{shown(timing.seconds)} / [{style}]{predicted}[/]")
        table.add_row(bytes_shown(size), *cells)
    table.caption = "If a prediction is bold, its measurement was not used for the fit."
    return table


def _constants(study: Study) -> Table:
    network = study.fit.network
    columns = ["algorithm", "latency", "bandwidth"]
    on_one_machine = network.cores is not None
    if on_one_machine:
        columns += ["larger buffers", "contention", "wait for a core"]
    table = _table("Fitted constants", *columns)
    cells = [network.algorithm, shown(network.alpha), _bandwidth(network.beta)]
    if on_one_machine:
        cells += [_beyond(network), f"{network.contention:.2f}", shown(network.wait)]
    table.add_row(*cells)
    if len({timing.ranks for timing in study.fit.timings}) == 1:
        table.caption = (
            "Timings of one number of ranks fit both algorithms equally well. "
            "To find the better algorithm, pass runs on several numbers of ranks."
        )
    return table


def _steps(study: Study) -> Table:
    titles = ("ranks", "batch on each rank", "measured", "predicted", "speed-up")
    table = _table("Training steps of the small CNN on this machine", *titles)
    compute = study.measured.compute
    for step in study.steps:
        gained = step.ranks * compute.step(step.batch) / step.seconds
        table.add_row(
            f"{step.ranks}",
            f"{step.batch:,}",
            shown(step.seconds),
            shown(predicted_step(step, study.measured, study.fit.network, study.slower)),
            f"{gained:.2f}×",
        )
    table.caption = (
        f"On several ranks, compute takes {study.slower:.2f} times as long as on one rank with its "
        "own core: the ranks share this machine's memory, and wait for the slowest rank. Speed-up: "
        "samples per second, compared with 1 rank."
    )
    return table


def _errors(study: Study) -> Table:
    table = _table("Errors of the predictions", "predicted", "measurements", "median error")
    for prediction in study.fit.predictions:
        style = "green" if prediction.median_error <= GOAL else "yellow"
        error = f"[{style}]{prediction.median_error:.0%}[/]"
        table.add_row(prediction.what, f"{prediction.count}", error)
    return table


def _forecasts(study: Study) -> Table:
    names = list(dict.fromkeys(forecast.strategy for forecast in study.forecasts))
    table = _table(
        f"Simulated steps, {study.batch:,} samples on each rank: time for a batch, speed-up",
        "ranks",
        *names,
    )
    for ranks in dict.fromkeys(forecast.ranks for forecast in study.forecasts):
        cells = [
            f"{shown(forecast.step.seconds_for_batch)}, {forecast.speedup:,.1f}×"
            for forecast in study.forecasts
            if forecast.ranks == ranks
        ]
        table.add_row(f"{ranks:,}", *cells)
    table.caption = "Each rank has its own core or GPU. Speed-up: compared with 1 rank."
    if len(study.workload.buckets()) == 1:
        table.caption += (
            f" All gradients fit in one bucket of {bytes_shown(study.workload.bucket)}, which is "
            "full when backward ends, so nothing overlaps."
        )
    return table


def _paying(study: Study) -> Table:
    columns = [
        f"{name}: {what}"
        for name in study.paying
        for what in ("faster than 1 rank", f"{GOOD:.0%} of the ideal speed")
    ]
    table = _table("The smallest batch with which more ranks are faster", "ranks", *columns)
    for row in zip(*study.paying.values(), strict=True):
        cells = [_batch(samples) for each in row for samples in (each.faster, each.efficient)]
        table.add_row(f"{row[0].ranks:,}", *cells)
    table.caption = (
        "Batch: samples on each rank, which has its own core or GPU. The ideal speed of N ranks is "
        "N times the speed of 1 rank."
    )
    return table


def _answer(study: Study) -> str:
    """Return a summary: the batches with which 2 ranks are slower than 1, and much faster."""
    two = study.paying["data parallel"][0]
    if two.faster is None:
        return "2 ranks are slower than 1 with any batch."
    text = f"With fewer than {_batch(two.faster)} on each rank, 2 ranks are slower than 1."
    if two.faster <= 1:
        text = "2 ranks are faster than 1 with any batch."
    times = f"{2 * GOOD:.1f} times as fast"
    if two.efficient is None:
        return f"{text} They are never {times}."
    if two.efficient <= 1:
        return f"2 ranks are at least {times} as 1 with any batch."
    return f"{text} To be {times}, they need {_batch(two.efficient)} on each rank."


def _ways(study: Study, model: Transformer) -> Table:
    table = _table(
        f"A transformer of {model.layers} layers, width {model.width:,}, "
        f"{bytes_shown(model.size)} of parameters, on {SHOWN} ranks",
        *("", "a rank sends", "step", "speed-up", "states", "activations"),
    )
    for split in study.splits:
        if split.ranks == SHOWN:
            cost = split.cost
            sizes = [bytes_shown(n) for n in (cost.sent, cost.states, cost.activations)]
            gained = f"{split.speedup:.2f}×"
            table.add_row(split.way, sizes[0], shown(cost.seconds), gained, *sizes[1:])
    table.caption = (
        f"Each way processes {SHOWN} × {study.batch:,} samples of {model.tokens:,} tokens in a "
        "step. States: a rank's parameters, gradients and two moments of Adam. Activations: kept "
        f"for backward. The pipeline has {microbatches(study.batch, SHOWN)} microbatches, and a "
        f"bubble of {bubble(study.batch, SHOWN):.0%}."
    )
    return table


def _splits(study: Study) -> Table:
    ranks = [number for number in MANY if any(split.ranks == number for split in study.splits)]
    table = _table("Speed-up, and memory of a rank", "", *(f"{number} ranks" for number in ranks))
    found = {(split.way, split.ranks): split for split in study.splits}
    for way in dict.fromkeys(split.way for split in study.splits):
        mine = (found.get((way, number)) for number in ranks)
        table.add_row(way, *("" if split is None else _both(split) for split in mine))
    table.caption = (
        "Memory: states and activations. Empty: the layers, the width or the tokens can't be split "
        "over so many ranks. Real systems combine ways, and overlap sending with computing."
    )
    return table


def _both(split: Split) -> str:
    memory = bytes_shown(split.cost.states + split.cost.activations)
    return f"{split.speedup:,.1f}×, {memory}"


def _busy(study: Study) -> str:
    """Return a warning if other programs used the cores, or else ""."""
    cores = study.fit.network.cores
    if cores is None or study.load < IDLE * cores:
        return ""
    return (
        f"Other programs were using this machine (load {study.load:.1f} on {cores} cores), so "
        "these figures and predictions are less accurate. Measure again when it is idle."
    )


def shown(seconds: float) -> str:
    """Return a time with a suitable unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= factor:
            number = seconds / factor
            return f"{number:,.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def bytes_shown(size: float) -> str:
    """Return a size with a suitable unit."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:,.4g} {unit}"
    return f"{size:.0f} B"


def _bandwidth(seconds_a_byte: float) -> str:
    speed = 1e-9 / seconds_a_byte
    return f"{speed:,.3g} GB/s" if speed < 1000 else "unlimited"


def _beyond(network: Network) -> str:
    if network.cache is None:
        return ""
    return f"{_bandwidth(network.beta_beyond)} above {bytes_shown(network.cache)}"


def _batch(samples: int | None) -> str:
    if samples is None:
        return "never"
    return "any batch" if samples <= 1 else f"{samples:,} samples"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table
