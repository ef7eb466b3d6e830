"""The application. Its table of commands is all that `gradsync --help` needs.

The module of a command is imported when the command is used. It has a function NAME_command, whose
parameters are the command's options, and whose docstring is its help.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
import typer.core
import typer.main
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

LEARNING, ENGINEERING, TEACHING = "Learn", "Your own scripts and machines", "Teach a course"


class Place(NamedTuple):
    """Where `gradsync --help` shows a command, and where its code is."""

    panel: str
    module: str  # within gradsync.cli
    summary: str  # the first line of the function's docstring


COMMANDS = {  # in the order of `gradsync --help`
    "start": Place(
        LEARNING,
        "learn.copies",
        "Copy the course to a folder of your own, with its tests and solutions.",
    ),
    "check": Place(
        LEARNING, "learn.checking", "Run the visible tests on your files, and show your progress."
    ),
    "hint": Place(
        LEARNING, "learn.hints", "Show hints on an exercise, starting with the smallest."
    ),
    "explain": Place(
        LEARNING,
        "learn.explaining",
        "Show what a mistake's code means, with wrong and right lines.",
    ),
    "solution": Place(
        LEARNING,
        "learn.solution",
        "Show the solution of an exercise beside yours, once yours passes all tests.",
    ),
    "update": Place(
        LEARNING,
        "learn.copies",
        "Update your copy of the course from a newer release. Your work stays as it is.",
    ),
    "train": Place(
        LEARNING, "launch.train", "Train the phase's model with your own `train`, under torchrun."
    ),
    "trace": Place(
        LEARNING,
        "learn.trace",
        "Draw when each rank of a trainer computes and when it communicates.",
    ),
    "doctor": Place(
        LEARNING,
        "launch.doctor",
        "Check this machine; exit with status 1 if a requirement is not met.",
    ),
    "review": Place(
        ENGINEERING,
        "launch.reviewing",
        "Find the pitfalls of distributed training in any PyTorch script, without running it.",
    ),
    "scale": Place(
        ENGINEERING,
        "launch.scaling",
        "Measure all-reduce and computation, and predict training speed on up to 1,024 ranks.",
    ),
    "grade": Place(TEACHING, "teach.grading", "Grade submissions with the hidden tests."),
    "demo": Place(
        TEACHING,
        "teach.grading",
        "Grade three submissions of one phase: the solution, the template, and one with a mistake.",
    ),
    "merge": Place(
        TEACHING,
        "teach.grades",
        "Merge the grades of several shards into one folder with one gradebook.",
    ),
    "report": Place(
        TEACHING,
        "teach.grades",
        "Render all pages and the gradebook again, without grading.",
    ),
    "export": Place(
        TEACHING,
        "teach.grades",
        "Write grades for Canvas, Moodle, Gradescope and other systems.",
    ),
    "nbgrade": Place(
        TEACHING,
        "teach.nbgrading",
        "Autograde an nbgrader assignment, several learners at a time, into its gradebook.",
    ),
    "release": Place(
        TEACHING,
        "teach.authoring",
        "Write a learner's copy of the course, without solutions and hidden tests.",
    ),
    "templates": Place(
        TEACHING,
        "teach.authoring",
        "Generate templates, notebooks and the guides' line counts (for authors of the course).",
    ),
}


class Deferred(typer.core.TyperCommand):
    """A command that is imported when it is used; until then, it has a name and a summary only."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Return the context of the complete command: the group then runs that one."""
        return complete(str(self.name)).make_context(*args, **extra)


def complete(name: str) -> typer.core.TyperCommand:
    """Import a command, and return it with its options."""
    module = import_module(f"gradsync.cli.{COMMANDS[name].module}")
    alone = _typer()
    alone.command(name)(getattr(module, f"{name}_command"))
    command = typer.main.get_command(alone)
    assert isinstance(command, typer.core.TyperCommand)
    return command


class Commands(typer.core.TyperGroup):
    """All commands. Their list looks like typer's, which imports Markdown and Python's grammar."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - it writes plain text
        """Print the list of commands, a panel for each audience."""
        console = Console()
        console.print(f"\n[bold][yellow]Usage:[/] {escape(self.get_usage(ctx)[7:])}[/]")
        console.print(f"\n {self.help}\n")
        shown = [name for name, command in self.commands.items() if not command.hidden]
        panels = dict.fromkeys(COMMANDS[name].panel for name in shown)
        for panel in panels:
            rows = Table.grid(padding=(0, 2, 0, 0))
            rows.add_column(style="bold cyan", width=max(map(len, shown)))
            for name in shown:
                if COMMANDS[name].panel == panel:
                    rows.add_row(name, COMMANDS[name].summary)
            console.print(Panel(rows, title=panel, title_align="left", border_style="dim"))
        console.print(" [dim]gradsync COMMAND --help[/] shows the options of a command.\n")


_typer = partial(
    typer.Typer, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
)
app = _typer(
    name="gradsync",
    cls=Commands,
    help="Learn distributed data-parallel training, and find out which mistake you made.",
    no_args_is_help=True,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"gradsync {import_module('gradsync').__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    pass


for _name, _place in COMMANDS.items():
    app.command(_name, cls=Deferred, help=_place.summary, rich_help_panel=_place.panel)(
        lambda: None
    )
