"""Run tests again as an ordinary user, if root runs them."""

import os
import sys
from pathlib import Path

from gradsync.ranks.sandbox.sandbox import PACKAGE


def as_an_ordinary_user(*readable):
    """Return the start of a command as a user who can read Python, the package and `readable`."""
    if os.geteuid() != 0:
        return []
    needed = [sys.base_prefix, sys.prefix, str(PACKAGE), *map(str, readable)]
    closed = {top for path in needed for top in Path(path).parents if not top.stat().st_mode & 1}
    view = ["bwrap", "--dev-bind", "/", "/"]
    for top in closed:  # such as /root
        view += ["--perms", "0755", "--tmpfs", str(top)]
    for path in needed:
        for folder in reversed(Path(path).parents):
            view += ["--perms", "0755", "--dir", str(folder)]
        view += ["--ro-bind", path, path]
    return [*view, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
