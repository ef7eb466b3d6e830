"""Start a real browser."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def browser() -> Iterator[Browser]:
    """Start the system's Chromium.

    Tests that need it are skipped if it is not installed. `make test` installs it for root.
    """
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("Chromium is not installed, so no test ran in a browser.")
    with sync_playwright() as play:
        options = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
        options += ["--disable-background-networking", "--disable-component-update"]
        started = play.chromium.launch(executable_path=program, args=options)
        with contextlib.closing(started):
            yield started
