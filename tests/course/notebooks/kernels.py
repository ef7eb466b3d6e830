"""A real kernel for tests: runs code and returns what a frontend would show."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

SECONDS = 60.0  # for one cell


@dataclass
class Result:
    """The output of one cell; each display with its latest update."""

    seconds: float = 0.0
    status: str = "ok"
    stdout: str = ""
    stderr: str = ""
    error: str = ""
    traceback: str = ""
    shown: list[dict[str, Any]] = field(default_factory=list)  # MIME type -> data
    updates: int = 0
    first: list[tuple[float, str]] = field(default_factory=list)  # time and text of each display

    @property
    def text(self) -> str:
        """All displays as text."""
        return "\n".join(forms.get("text/plain", "") for forms in self.shown)

    @property
    def html(self) -> str:
        return "\n".join(forms.get("text/html", "") for forms in self.shown)


class Kernel:
    """A kernel and its client."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client

    def begin(self, code: str) -> str:
        """Start a cell; return the id of the request."""
        return str(self.client.execute(code))

    def run(self, code: str) -> Result:
        """Run a cell to its end."""
        return self.finish(self.begin(code))

    def finish(self, request: str) -> Result:
        """Wait for the end of a started cell, and return its output."""
        began, result, displays = time.monotonic(), Result(), {}
        while time.monotonic() - began < SECONDS:
            try:
                message = self.client.get_iopub_msg(timeout=SECONDS)
            except queue.Empty:
                break
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                result.seconds = time.monotonic() - began
                return result
            if kind == "display_data":
                text = content["data"].get("text/plain", "")
                result.first.append((time.monotonic() - began, text))
            _take(result, displays, kind, content)
        raise TimeoutError(f"The cell did not end within {SECONDS:g} s.")


def _take(result: Result, displays: dict[str, int], kind: str, content: dict[str, Any]) -> None:
    if kind == "stream":
        setattr(result, content["name"], getattr(result, content["name"]) + content["text"])
    elif kind in ("display_data", "execute_result"):
        displays[content.get("transient", {}).get("display_id", "")] = len(result.shown)
        result.shown.append(content["data"])
    elif kind == "update_display_data":
        result.updates += 1
        result.shown[displays[content["transient"]["display_id"]]] = content["data"]
    elif kind == "error":
        result.status, result.error = "error", f"{content['ename']}: {content['evalue']}"
        result.traceback = "\n".join(content["traceback"])


@contextmanager
def kernel(cwd: str | None = None) -> Iterator[Kernel]:
    """Start a kernel in a folder; end it when the block ends."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(**({"cwd": cwd} if cwd else {}))
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=SECONDS)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
