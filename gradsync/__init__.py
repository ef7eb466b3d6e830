"""Learn distributed data-parallel training, and find out which mistake you made.

`run_ranks` runs a function on N ranks from a script, a notebook or a test. All other features are
available from the command line (`gradsync --help`) and in pytest (the `ranks` fixture).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from gradsync.ranks import LauncherError, RankFailure, RankWarning, kill, run_ranks, slow
    from gradsync.ranks.flight_recorder import write_flight_records

__all__ = [
    "LauncherError",
    "RankFailure",
    "RankWarning",
    "__version__",
    "kill",
    "run_ranks",
    "slow",
    "write_flight_records",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the engine when it is first used, so that `import gradsync` is instant."""
    if name in {"run_ranks", "RankFailure", "RankWarning", "LauncherError", "kill", "slow"}:
        from gradsync import ranks

        return getattr(ranks, name)
    if name == "write_flight_records":
        from gradsync.ranks import flight_recorder

        return flight_recorder.write_flight_records
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Define `%%ranks` and `%ranks` in a notebook: `%load_ext gradsync` calls this."""
    from gradsync.notebook.magics import load

    load(shell)
