"""Run the self-study notebooks and write each one with its outputs: `make notebook-outputs`.

The source of `NN_title.ipynb` is `NN_title.py` beside it, in jupytext's percent format. Without
arguments all notebooks are built. Arguments select notebooks by the beginning of their names:

    python notebooks/build.py 03 04
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

HERE = Path(__file__).parent
SECONDS = 300  # for each cell: only a cell that hangs takes so long
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
FORMAT = {"extension": ".py", "format_name": "percent", "comment_magics": True}
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def sources(names: list[str]) -> list[Path]:
    """Return the sources whose names begin with one of `names`; all sources if it is empty."""
    found = sorted(HERE.glob("[0-9][0-9]_*.py"))
    return [path for path in found if not names or path.name.startswith(tuple(names))]


def read(source: Path) -> NotebookNode:
    """Return the notebook that a source describes, with stable cell ids and without outputs."""
    notebook = jupytext.read(source, fmt=FORMAT)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    return notebook


def run(notebook: NotebookNode) -> float:
    """Run a notebook from top to bottom in its folder; return the seconds that it took.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell without the tag `raises-exception` failed.
    """
    began = time.monotonic()
    client = NotebookClient(
        notebook, timeout=SECONDS, resources={"metadata": {"path": str(HERE)}}, record_timing=False
    )
    client.execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = list(filter(_is_visible, cell.outputs))
    return time.monotonic() - began


def _is_visible(output: NotebookNode) -> bool:
    """Return whether an output has content: a message that was cleared later has none."""
    return "data" not in output or any(output.data.values())


def main(names: list[str]) -> int:
    """Build notebooks; return 0."""
    for source in sources(names):
        notebook = read(source)
        seconds = run(notebook)
        text = ADDRESS.sub(" at 0x...", nbformat.writes(notebook))
        source.with_suffix(".ipynb").write_text(text + "\n", encoding="utf-8")
        print(f"{source.stem}: {seconds:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
