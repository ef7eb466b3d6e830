"""Run a command as a platform's container does: in fixed folders, as a user or as root."""

import os
import sys
from pathlib import Path

NOBODY = 65534


def in_container(mounts, namespaces=True, as_root=False):
    """Return the start of a command that sees these folders at fixed paths.

    Args:
        mounts: such as {"/autograder": a folder}; the user may write to these folders.
        namespaces: whether the command may create user namespaces, which a sandbox needs.
        as_root: stay root, as the containers of many platforms do.
    """
    view = ["bwrap", *_root(), "--perms", "1777", "--tmpfs", "/tmp", *_python()]
    for place, folder in mounts.items():
        view += ["--bind", str(folder), place]
    if not namespaces:
        return [*view, "--unshare-user", "--uid", str(NOBODY), "--disable-userns"]
    if as_root or os.geteuid() != 0:
        return view
    for folder in mounts.values():
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
    return [*view, "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


def _root():
    """Return options for a new root folder with the folders and links of the machine's root."""
    for path in sorted(Path("/").iterdir()):
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--dev-bind", str(path), str(path))


def _python():
    """Return options that let everybody read this Python, even if it is in /root."""
    needed = [sys.base_prefix, sys.prefix]
    for closed in {top for path in needed for top in Path(path).parents if not _is_open(top)}:
        yield from ("--perms", "0755", "--tmpfs", str(closed))
    for path in needed:
        for folder in reversed(Path(path).parents):
            yield from ("--perms", "0755", "--dir", str(folder))
        yield from ("--ro-bind", path, path)


def _is_open(folder):
    return folder.stat().st_mode & 1
