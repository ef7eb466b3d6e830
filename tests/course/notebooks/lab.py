"""JupyterLab, and a notebook that is open in it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Page, expect

SECONDS = 180.0  # enough for a busy machine; an idle one needs three
ANSWER_SECONDS = 10.0  # for the first cell, before it is run again
TOKEN = "tests-alone"


@contextmanager
def server(folder: Path, *options: str) -> Iterator[str]:
    """Serve a folder with Jupyter; yield the address of its pages."""
    environ = {**os.environ, "JUPYTER_RUNTIME_DIR": str(folder / ".runtime")}
    environ |= {"JUPYTER_CONFIG_DIR": str(folder / ".config"), "JUPYTER_TOKEN": TOKEN}
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--port=0", "--allow-root"]
    log = folder / ".log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*command, *options], cwd=folder, env=environ, stdout=stream, stderr=stream
        )
    try:
        yield _address(folder / ".runtime", process, log)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(runtime: Path, process: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and process.poll() is None:
        for path in runtime.glob("jpserver-*.json"):
            with contextlib.suppress(OSError, ValueError):  # not started, or a partly written file
                url = str(json.loads(path.read_text())["url"])
                urllib.request.urlopen(f"{url}api?token={TOKEN}", timeout=5).close()
                return url
        time.sleep(0.1)
    raise RuntimeError(f"Jupyter did not start. Its log: {log.read_text()[-2000:]}")


def write_notebook(path: Path, cells: Sequence[str]) -> None:
    """Write a notebook with these code cells."""
    notebook = new_notebook(cells=[new_code_cell(source) for source in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, path)


class Lab:
    """An open notebook in JupyterLab."""

    def __init__(self, page: Page, address: str, notebook: str) -> None:
        self.page = page
        page.set_default_timeout(SECONDS * 1000)
        # On a busy machine, JupyterLab may show a dialog about a slow kernel or server.
        page.add_locator_handler(
            page.locator(".jp-Dialog"), lambda dialog: dialog.locator(".jp-mod-accept").click()
        )
        page.goto(f"{address}lab/tree/{notebook}?token={TOKEN}&reset")
        page.wait_for_selector(".jp-Notebook .jp-CodeCell")
        page.wait_for_selector('.jp-NotebookPanel [data-status="idle"]', state="attached")

    def load(self) -> None:
        """Run the first cell until the kernel answers: Jupyter may drop an early request."""
        prompt = self.page.locator(".jp-Notebook .jp-InputPrompt").first
        until = time.monotonic() + SECONDS
        while not re.search(r"\d", prompt.inner_text()) and time.monotonic() < until:
            self.run(0)
            with contextlib.suppress(AssertionError):
                expect(prompt).to_have_text(re.compile(r"\d"), timeout=ANSWER_SECONDS * 1000)

    def run(self, number: int) -> None:
        """Start a cell."""
        self.page.locator(".jp-Notebook .jp-CodeCell").nth(number).locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")

    def output(self, number: int, text: str) -> str:
        """Wait until a cell's output contains a text; return the complete output."""
        cell = self.page.locator(".jp-Notebook .jp-CodeCell").nth(number)
        area = cell.locator(".jp-OutputArea")
        area.get_by_text(text).first.wait_for()
        return area.first.inner_text()

    def stop(self) -> None:
        """Press the stop button."""
        self.page.locator('[data-jp-item-name="interrupt"]').locator("jp-button").first.click()
