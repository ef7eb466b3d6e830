"""Plot measured and predicted all-reduces, and the simulated speed on many ranks."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from gradsync.scale.simulation import WAYS, rate
from gradsync.scale.study import SIMULATED, Study


def plot(study: Study, batch_size: int, path: Path) -> None:
    """Write the plot; the ending of `path` chooses the format."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    times, speed = figure.subplots(1, 2)
    samples = [*study.fitted, *study.held_out]
    for ranks in sorted({sample.ranks for sample in samples}):
        own = sorted((s.size, s.seconds) for s in samples if s.ranks == ranks)
        sizes = [size for size, _ in own]
        [line] = times.loglog(sizes, [1000 * s for _, s in own], "o", label=f"{ranks} ranks")
        predicted = [1000 * study.costs.seconds(ranks, size) for size in sizes]
        times.loglog(sizes, predicted, "-", color=line.get_color())
    title = f"All-reduce: measured (dots), {study.costs.shape} model (lines)"
    times.set(xlabel="bytes", ylabel="ms", title=title)
    for way in WAYS:
        rates = [rate(study.job, study.alone, way, n, batch_size) for n in SIMULATED]
        speed.loglog(SIMULATED, rates, marker=".", base=2, label=way)
    ideal = [n * rates[0] for n in SIMULATED]
    speed.loglog(SIMULATED, ideal, ":", color="grey", base=2, label="ideal")
    title = f"Simulated speed, {batch_size} samples per rank"
    speed.set(xlabel="ranks", ylabel="samples per second", title=title)
    for axes in (times, speed):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
