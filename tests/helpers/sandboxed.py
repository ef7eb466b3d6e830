"""A fixture for tests that run ranks in a sandbox."""

from __future__ import annotations

import pytest

from gradsync.errors import SandboxError
from gradsync.ranks.sandbox import sandbox


@pytest.fixture(scope="session")
def needs_sandbox() -> None:
    """Skip the test if this machine has no sandbox, for example without bubblewrap."""
    try:
        sandbox.check()
    except SandboxError as problem:
        pytest.skip(str(problem))
