"""A learner's files, compiled once for all the ranks that will import them.

To compile `template_trainer.py` takes longer than all the rest of its import, and every rank of
every test imports it. Even that much is not done on the trusted side: there are sources that bring
the compiler down.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import cache_from_source
from pathlib import Path

from gradsync.ranks.crew import Launcher, rank_environ
from gradsync.ranks.observe import observe
from gradsync.ranks.task import Task

PATIENCE = 20.0  # seconds


def precompile(folder: Path, files: Sequence[str], launcher: Launcher) -> None:
    """Have a rank compile the `files` of `folder`, unless somebody has, for ranks to come.

    One that can't be compiled is left alone: it says so itself when it is imported.
    """
    paths = [path for path in (folder / file for file in files) if path.is_file()]
    if not paths:
        return
    caches = [Path(cache_from_source(path)) for path in paths]
    try:
        caches[0].parent.mkdir()
    except FileExistsError:
        return
    task = Task(
        function=compile_files,
        world_size=1,
        inputs={"paths": [str(path) for path in paths]},
        roots=(folder,),
        environ=rank_environ(bare=True),
        process_group=False,
        timeout=PATIENCE,
    )
    [codes] = observe(task, launcher)
    for cache, code in zip(caches, codes or (), strict=False):
        if type(code) is bytes:
            part = cache.with_suffix(".part")
            part.write_bytes(code)
            part.replace(cache)  # ranks of another test may be importing it by now


def compile_files(paths: list[str]) -> list[bytes | None]:
    """Return what Python keeps of each file in `__pycache__`; this is what the rank does."""
    import py_compile
    import tempfile

    codes: list[bytes | None] = []
    with tempfile.TemporaryDirectory() as folder:
        for path in paths:
            try:
                cache = py_compile.compile(path, str(Path(folder) / "cache"), doraise=True)
            except (py_compile.PyCompileError, ValueError, MemoryError, RecursionError):
                cache = None
            codes.append(Path(cache).read_bytes() if cache else None)
    return codes
