"""`gradsync scale`: what it costs to add ranks, measured here and simulated beyond."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from gradsync.cli.app import app
from gradsync.errors import UnusableInput
from gradsync.text import size_text

if TYPE_CHECKING:
    from gradsync.scale.study import Study


@app.command(name="scale")
def scale_command(
    nccl: Annotated[
        list[Path] | None,
        typer.Option(
            dir_okay=False,
            help="Output of nccl-tests' all_reduce_perf, to use instead; one for each number of "
            "ranks.",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples of one rank in a batch.")] = 50,
    as_json: Annotated[
        Path | None, typer.Option("--json", dir_okay=False, help="Write everything as JSON.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write a plot: .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Measure what adding ranks costs, and simulate up to 1,024 of them.

    Measures all-reduces over gloo (1 KiB to 64 MiB; 2, 3 and 4 ranks) and the
    computation of the small CNN, fits a model to some of the measurements, and
    tests it on the others.

    [dim]gradsync scale --plot scale.png[/]     on this machine, half a minute
    [dim]gradsync scale --nccl log.txt[/]       with a cluster's nccl-tests
    """
    for path in (as_json, plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise UnusableInput(f"There is no folder {path.absolute().parent} for {path.name}.")
    from gradsync.scale.study import measured_here

    study = _of_nccl(nccl) if nccl else measured_here()
    _show(study, batch_size)
    if as_json is not None:
        as_json.write_text(json.dumps(study.to_json(batch_size), indent=1), encoding="utf-8")
        print(f"Wrote {as_json}")
    if plot is not None:
        _plot(study, batch_size, plot)


def _of_nccl(paths: list[Path]) -> Study:
    """Fit every second size of nccl-tests' output, and hold out the others."""
    from gradsync.scale.nccl_tests import read_nccl_tests
    from gradsync.scale.study import study_of

    samples = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as problem:
            raise UnusableInput(f"{path} can't be read: {problem.strerror}.") from None
        samples.append(read_nccl_tests(text))
    fitted = [sample for file in samples for sample in file[::2]]
    return study_of(fitted, [sample for file in samples for sample in file[1::2]])


def _plot(study: Study, batch_size: int, path: Path) -> None:
    from gradsync.scale.plot import plot

    try:
        plot(study, batch_size, path)
    except ValueError as problem:  # the ending names no format
        raise UnusableInput(f"{path} can't be written: {problem}") from None
    print(f"Wrote {path}")


def _show(study: Study, batch_size: int) -> None:
    from gradsync.scale.simulation import WAYS, rate
    from gradsync.scale.study import SIMULATED

    console = Console()
    measured = Table(
        "ranks", "bytes", "measured", "predicted", "error", title="All-reduce", box=box.SIMPLE
    )
    for sample in [*study.fitted, *study.held_out]:
        predicted = study.costs.seconds(sample.ranks, sample.size)
        error = abs(predicted - sample.seconds) / sample.seconds
        mark = " (held out)" if sample in study.held_out else ""
        times = (f"{1000 * sample.seconds:.3g} ms", f"{1000 * predicted:.3g} ms")
        measured.add_row(str(sample.ranks), size_text(sample.size), *times, f"{error:.0%}{mark}")
    console.print(measured)
    for model in study.models.values():
        print(
            f"{model.shape}: {1e6 * model.call:.0f} us a call, {1e6 * model.alpha:.1f} us a "
            f"message, {1e-9 / model.beta:.2f} GB/s; median error where fitted "
            f"{model.error(study.fitted):.0%}" + ", used below" * (model == study.costs)
        )
    if study.error is not None:
        print(f"Median error of the predictions that were not fitted: {study.error:.0%}\n")
    title = (
        f"Simulated samples/s, {batch_size} per rank; batch from which it pays, or is 80% efficient"
    )
    columns = ("ranks", *WAYS, "pays", "80%")
    speeds = Table(*columns, title=title, box=box.SIMPLE, pad_edge=False)
    for ranks in SIMULATED:
        rates = (f"{rate(study.job, study.alone, way, ranks, batch_size):,.0f}" for way in WAYS)
        more = ("", "") if ranks == 1 else (study.pays_from(ranks), study.efficient_from(ranks))
        speeds.add_row(f"{ranks:,}", *rates, *map(str, more))
    console.print(speeds)
    print(
        f"{_advice(study)} The simulation assumes that each rank has a core, or a GPU, of its own."
    )


def _advice(study: Study) -> str:
    """Say from which batch size on a second rank pays."""
    pays, efficient = study.pays_from(2), study.efficient_from(2)
    if efficient == 1:
        return "A second rank pays at any batch size."
    least = "at any batch size" if pays == 1 else f"from {pays} samples per rank on"
    return (
        f"A second rank pays {least}. From {efficient} samples per rank on, communication takes at "
        "most a fifth of a step."
    )
