"""`gradsync train`: train with your own trainer, on one node or several."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from gradsync.cli.shared import say
from gradsync.cores import available_cores
from gradsync.course.catalogue import Course, CourseError, find_course
from gradsync.launch import finished, placement
from gradsync.launch.placement import LaunchError, Master
from gradsync.launch.settings import Settings
from gradsync.text import counted, listed

DEFAULT_RANKS = 2  # on a machine without GPUs


PhaseFile = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PHASE] [FILE]",
        help="A phase, such as phase2, or the file of a trainer, or both. Default: phase 1.",
    ),
]
Nproc = Annotated[
    int | None,
    typer.Option(min=1, help="Ranks on each node. Default: one for each GPU, or else 2."),
]
Nodes = Annotated[
    int | None, typer.Option(min=1, help="Nodes. Default: the nodes of the `srun` step, or else 1.")
]
Restarts = Annotated[
    int, typer.Option(min=0, help="How many times to restart all ranks after one has failed.")
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST[:PORT]",
        help="The master of several nodes. Default: $MASTER_ADDR and $MASTER_PORT, or the first "
        "node of the Slurm job and port 29500.",
    ),
]
Wait = Annotated[float, typer.Option(min=1, help="Seconds to wait for the other nodes.")]
Timeout = Annotated[int, typer.Option(min=1, help="Seconds that a rank waits for the others.")]
Epochs = Annotated[
    int | None, typer.Option(min=1, help="Number of epochs. Default: 5; in phase 3, 2.")
]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="The batch size of each rank. Default: 50, 8.")
]
LearningRate = Annotated[
    float | None, typer.Option(min=0, help="The learning rate. Default: 0.1, 0.002.")
]
Samples = Annotated[
    int | None, typer.Option(min=1, help="Training samples to use. Default: 10,000, 3,200.")
]
Seed = Annotated[int, typer.Option(min=0, help="The seed of the weights and the shuffling.")]
Out = Annotated[
    Path | None,
    typer.Option(file_okay=False, help="The folder for the results. Default: runs/PHASE."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start again, even if there is a checkpoint.")]
TestLinks = Annotated[
    bool, typer.Option("--test-links", help="Test the links between the ranks; do not train.")
]


def train_command(
    phase_file: PhaseFile = None,
    nproc: Nproc = None,
    nodes: Nodes = None,
    max_restarts: Restarts = 0,
    master: MasterOption = None,
    wait: Wait = 300,
    timeout: Timeout = 60,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    samples: Samples = None,
    seed: Seed = 0,
    out: Out = None,
    fresh: Fresh = False,
    test_links: TestLinks = False,
) -> None:
    """Train the phase's model with your own `train`, under torchrun.

    At the end it checks that the ranks trained like one process, and
    names the mistake if not. Then it writes curves.png and the exported
    model.pt2. After phase 1, the same command continues an interrupted run.

    [dim]gradsync train[/]                          phase 1, on this machine
    [dim]gradsync train phase2 --max-restarts 3[/]   restarts after a failed rank
    [dim]gradsync train phase3[/]                   a transformer, and a sample of text
    [dim]gradsync train --nodes 2 --master n1[/]     run this on both nodes
    """
    course = find_course()
    phase, trainer = _trainer(course, phase_file or [])
    settings = Settings(
        course.root,
        phase,
        trainer,
        out or Path("runs", phase),
        seed=seed,
        timeout=timeout,
        max_restarts=max_restarts,
        test_links=test_links,
        fresh=fresh,
        **_of_phase(course, phase, epochs=epochs, batch_size=batch_size, lr=lr, samples=samples),
    )
    _run(settings, nodes or placement.nodes_of_step(os.environ), nproc, master, wait)


def _of_phase(course: Course, phase: str, **options: float | None) -> dict[str, Any]:
    """Return these settings: of the command, or else the phase's own defaults, if it has some."""
    defaults = course.training(phase)
    given = {name: value for name, value in options.items() if value is not None}
    named = {"saved": defaults.pop("checkpoint")} if "checkpoint" in defaults else {}
    return {**defaults, **given, **named}


def _run(
    settings: Settings, nodes: int, nproc: int | None, master: str | None, wait: float
) -> None:
    """Train, or test the links, on this node."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # this and the ranks; read at import
    master_node = placement.find_master(os.environ, master) if nodes > 1 else None
    training = not settings.test_links
    if training and _is_complete(settings, is_master=master_node is None or master_node.is_here):
        return
    if master_node is not None:
        master_node = _reachable(master_node, wait)
    if training and (master_node is None or master_node.is_here):
        _prepare(settings)
    _launch(settings, master_node, nodes, nproc, wait)


def _trainer(course: Course, words: list[str]) -> tuple[str, Path]:
    """Return the phase and the trainer's file, from the arguments."""
    if len(words) > 2:
        raise LaunchError("Name one phase and one file at most, as in: gradsync train phase1 FILE.")
    files = [Path(word) for word in words if word.endswith(".py")]
    phases = [_phase(course, word) for word in words if not word.endswith(".py")]
    if len(files) > 1 or len(phases) > 1:
        raise LaunchError("Name one phase and one file at most, as in: gradsync train phase1 FILE.")
    if not files:
        phase = phases[0] if phases else course.phases[0]
        return phase, _existing(course.root / phase / "template_trainer.py")
    file = _existing(files[0])
    if phases:
        return phases[0], file
    if file.parent.name in course.phases:
        return file.parent.name, file
    raise LaunchError(
        f"The phase of {files[0]} is not clear: it is not in a folder such as {course.phases[0]}. "
        f"Name the phase, too: gradsync train {course.phases[0]} {files[0]}."
    )


def _phase(course: Course, word: str) -> str:
    try:
        return course.phase(word)
    except CourseError:
        known = listed(course.phases, "or")
        raise LaunchError(f"{word!r} is neither a phase ({known}) nor a Python file.") from None


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise LaunchError(f"The trainer {file} does not exist. Name a Python file that exists.")
    return file.resolve()


def _is_complete(settings: Settings, *, is_master: bool) -> bool:
    """Return whether the run is complete; if so, print a message on the master.

    Every node checks this itself, before it waits for the others.

    Raises:
        LaunchError: the folder has a complete run with different settings, or of other files.
    """
    if settings.fresh or not finished.is_finished(settings):
        return False
    finished.check(settings, same_trainer=is_master)
    if is_master:
        finished.check_files(settings)
        say(finished.completion(settings))
    return True


def _reachable(master_node: Master, wait: float) -> Master:
    """Wait until the master can be reached, and return it."""
    if master_node.is_here:
        master_node = placement.check_port(master_node)
    if not master_node.is_here:
        previous = signal.signal(signal.SIGTERM, _stop_waiting)
        placement.wait_for_master(master_node, wait)
        signal.signal(signal.SIGTERM, previous)
    return master_node


def _stop_waiting(number: int, _frame: object) -> None:
    say(
        "Stopped by SIGTERM before all nodes were connected. Start the same command again on "
        "every node."
    )
    raise typer.Exit(128 + number)


def _prepare(settings: Settings) -> None:
    """Create the output folder, and remove a previous run's files if this run is `fresh`.

    Raises:
        LaunchError: the folder has an interrupted run with different settings.
    """
    settings.out.mkdir(parents=True, exist_ok=True)
    if settings.fresh:
        finished.remove(settings)
    finished.check_continuation(settings)


def _launch(
    settings: Settings, master_node: Master | None, nodes: int, nproc: int | None, wait: float
) -> None:
    import torch

    from gradsync.launch import agent

    gpus = torch.cuda.device_count()
    ranks = nproc or gpus or DEFAULT_RANKS
    if gpus and ranks > gpus:
        raise LaunchError(
            f"{counted(ranks, 'rank')} need {ranks} GPUs, but this machine has {gpus}: nccl does "
            f"not allow two ranks on one GPU. Use --nproc {gpus}, or set CUDA_VISIBLE_DEVICES= to "
            "train on the CPU with gloo."
        )
    cores = available_cores()
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // ranks)))
    try:
        agent.launch(settings, master_node, nodes, ranks, wait)
    except agent.TrainingError as problem:
        say(str(problem))
        raise typer.Exit(problem.status) from None
