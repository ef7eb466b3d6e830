"""`python -m gradsync.exporting.probe`: exit with status 1 where ranks can't run in a sandbox."""

from __future__ import annotations

import sys
from pathlib import Path

from gradsync.errors import SandboxError
from gradsync.ranks.sandbox.sandbox import check

if __name__ == "__main__":
    try:
        check(Path.cwd())
    except SandboxError as problem:
        sys.exit(f"gradsync: This submission is graded without a sandbox. {problem}")
