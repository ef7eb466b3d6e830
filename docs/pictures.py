"""Take the pictures of the README and the documentation anew: `make pictures` (it needs Chromium).

`report.png` is the mistake in a report of `gradsync demo`; `ranks.png` shows cells of a notebook.
The drawings (`*.svg`, here and in `phase*/pictures`) are written by hand: each is its own source.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Page, sync_playwright

from gradsync.course.catalogue import Course
from gradsync.course.known_submissions import shown_mistake

DOCS = Path(__file__).parent
WIDTH = 1000
CELLS = (
    "%load_ext gradsync",
    """\
%%ranks 4
import torch, torch.distributed as dist

grad = torch.tensor([1.0, 2.0]) * rank
dist.all_reduce(grad)
grad / world_size""",
    """\
%%ranks 4
bias_grad = torch.tensor(0.5) if rank in (0, 3) else None

dist.all_reduce(grad)
if bias_grad is not None:       # skips a parameter without a gradient
    dist.all_reduce(bias_grad)""",
    """\
%%ranks 4
bias_grad                       # the ranks keep their variables""",
)


def main() -> None:
    """Write both pictures."""
    with tempfile.TemporaryDirectory() as name, browser() as page:
        folder = Path(name)
        page.goto(report(folder).as_uri())
        page.locator(".problem").first.screenshot(path=DOCS / "report.png")
        page.goto(notebook(folder).as_uri())
        page.locator("main").screenshot(path=DOCS / "ranks.png")


@contextmanager
def browser() -> Iterator[Page]:
    """Open a page in the system's Chromium."""
    with sync_playwright() as play:
        options = {"executable_path": shutil.which("chromium"), "args": ["--no-sandbox"]}
        started = play.chromium.launch(**options)
        yield started.new_page(viewport={"width": WIDTH, "height": 800})
        started.close()


def report(folder: Path) -> Path:
    """Return the page of the demo's submission with a mistake."""
    course = Course(DOCS.parent)
    demo = [sys.executable, "-m", "gradsync", "demo", "--seed", "1", "--out", str(folder)]
    subprocess.run(demo, check=True, stdout=subprocess.DEVNULL)
    return folder / shown_mistake(course).submission(course).name / "report.html"


def notebook(folder: Path) -> Path:
    """Return a page with the cells and their outputs, as JupyterLab shows them."""
    cells = [new_code_cell(source, metadata={"tags": ["raises-exception"]}) for source in CELLS]
    written = new_notebook(cells=cells)
    NotebookClient(written, timeout=60).execute()
    del written.cells[0]  # %load_ext
    page = folder / "cells.html"
    page.write_text(HTMLExporter(template_name="lab").from_notebook_node(written)[0])
    return page


if __name__ == "__main__":
    main()
