"""`gradsync scale`: measure the cost of communication, and predict training on more ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from gradsync.cli.activity import activity
from gradsync.cli.shared import imports_of
from gradsync.cores import available_cores
from gradsync.course.catalogue import find_course
from gradsync.errors import UnusableInput
from gradsync.submission import read_submission

if TYPE_CHECKING:
    from rich.table import Table

    from gradsync.scale.study import Study


Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", dir_okay=False, help="Write all figures as JSON."),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", dir_okay=False, help="Write a plot as PNG."),
]
NcclTests = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="The output of all_reduce_perf of nccl-tests; all-reduce is then not measured here. "
        "Repeat the option for several numbers of ranks.",
    ),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Samples on each rank in simulated steps.")]
Parameters = Annotated[
    int | None,
    typer.Option(min=1, help="Parameters of the simulated model. Default: the small CNN's."),
]
SampleMs = Annotated[
    float | None,
    typer.Option(
        min=1e-6,
        help="Milliseconds of forward and backward for each sample of the simulated model. "
        "Default: the time of the small CNN, measured here.",
    ),
]
OfTransformer = Annotated[
    tuple[int, int, int] | None,
    typer.Option(
        "--transformer",
        metavar="LAYERS WIDTH TOKENS",
        help="Simulate a transformer of this size, with so many tokens in each sample.",
    ),
]
USED_BY_MINE = ("--mine", "--json")
Mine = Annotated[
    bool,
    typer.Option("--mine", help="Compare your own gradient averaging with torch's DDP instead."),
]


def scale_command(
    context: typer.Context,
    json_file: Json = None,
    plot_file: Plot = None,
    nccl_tests: NcclTests = None,
    batch_size: BatchSize = 64,
    parameters: Parameters = None,
    sample_ms: SampleMs = None,
    transformer: OfTransformer = None,
    mine: Mine = False,
) -> None:
    """Measure all-reduce and computation, and predict training speed on up to 1,024 ranks.

    Shows the smallest batch size with which more ranks are faster than one, and compares ways to
    split a transformer: ZeRO-1 to 3, tensor, pipeline and ring parallelism.
    docs/scaling.md describes the models.

    [dim]gradsync scale --plot scaling.png[/]     this machine, and the small CNN
    [dim]gradsync scale --mine[/]                 your own averager and DDP, on 2 ranks
    [dim]gradsync scale --transformer 12 768 1024[/]
                                          this machine, and a larger transformer
    [dim]gradsync scale --nccl-tests 16.txt --parameters 124000000 --sample-ms 9[/]
                                          a cluster, and your own model
    """
    for path in (json_file, plot_file):
        if path is not None and not path.absolute().parent.is_dir():
            raise UnusableInput(f"There is no folder for {path}. Create it, or name another file.")
    if mine:
        _refuse_beside_mine(context)
        _compare(json_file)
        return
    if transformer is not None and min(transformer) < 1:
        raise UnusableInput("--transformer needs three numbers of at least 1.")
    result = _study(nccl_tests or [], batch_size, (parameters, sample_ms, transformer))
    from gradsync.scale.tables import tables

    _show(tables(result))
    if json_file is not None:
        _write(asdict(result), json_file)
    if plot_file is not None:
        with imports_of("course"):
            from gradsync.scale.plot import plot
        plot(result, plot_file)
        print(f"Plotted {plot_file}")


def _refuse_beside_mine(context: typer.Context) -> None:
    """Refuse options that the comparison does not use.

    Raises:
        UnusableInput: such an option was given.
    """
    for option in context.command.params:
        source = context.get_parameter_source(str(option.name))
        is_given = source is not None and source.name == "COMMANDLINE"
        if is_given and option.opts[0] not in USED_BY_MINE:
            raise UnusableInput(
                f"{option.opts[0]} has no effect with --mine, which always compares the same model "
                "with 256 samples on each of 2 ranks. Leave out one of these options."
            )


def _study(
    files: list[Path],
    batch_size: int,
    simulated: tuple[int | None, float | None, tuple[int, int, int] | None],
) -> Study:
    from gradsync.scale.nccl_tests import read_nccl_tests

    timings = read_nccl_tests(files)  # reports a bad file before torch is imported
    from gradsync.scale.measuring import Plan
    from gradsync.scale.study import Simulated, study_cluster, study_machine

    model = Simulated(*simulated)
    with activity() as shown:
        if timings:
            return study_cluster(timings, batch_size, model, shown.show)
        return study_machine(Plan(), available_cores(), batch_size, model, shown.show)


def _compare(json_file: Path | None) -> None:
    """Measure the learner's averagers, and compare them with DDP."""
    from gradsync.scale.mine import compare
    from gradsync.scale.tables import averagers

    course = find_course()
    submission = read_submission(course.root.resolve(), course)
    with activity() as shown:
        found = compare(submission, course, shown.show)
    _show(averagers(found))
    if json_file is not None:
        _write(asdict(found), json_file)


def _show(parts: Iterable[Table | str]) -> None:
    console = Console()
    for part in parts:
        console.print(part, markup=not isinstance(part, str))
        console.print()


def _write(results: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"Wrote {path}")
