"""Cells on 4 ranks compared with ipyparallel; `check`; and the self-study notebooks."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from benchmarks.figure import Figure, shown
from gradsync.course.catalogue import find_course
from notebooks.build import read, run, sources

IMPORTS = "import torch, torch.distributed as dist\n"
CELL = "%%ranks 4\n" + IMPORTS + "x = torch.ones(1000)\ndist.all_reduce(x)\nfloat(x[0])"
DEADLOCK = "%%ranks 4\nif rank in (0, 3):\n    dist.all_reduce(x)"
CLUSTER = """
import logging, warnings
warnings.filterwarnings("ignore")
import ipyparallel
cluster = ipyparallel.Cluster(n=4, log_level=logging.ERROR)
client = cluster.start_and_connect_sync(activate=True)
client[:].push({"store": STORE})
client[:].scatter("rank", range(4), flatten=True)
"""
GROUP = f"""%%px
{IMPORTS}
_ = dist.init_process_group("gloo", store=dist.FileStore(store, 4), rank=rank, world_size=4)
"""
THEIRS = "%%px\nx = torch.ones(1000)\ndist.all_reduce(x)\nfloat(x[0])"
EXERCISES = ("PaddedDistributedSampler", "average_gradients", "train_step", "ring_all_reduce")


class Cells:
    """A kernel that runs cells and measures them."""

    def __init__(self, client: NotebookClient) -> None:
        self._client = client

    def seconds(self, source: str) -> float:
        """Return the seconds from `execute` until the cell's last output."""
        cell = new_code_cell(source, metadata={"tags": ["raises-exception"]})
        self._client.nb.cells.append(cell)
        began = time.perf_counter()
        self._client.execute_cell(cell, len(self._client.nb.cells) - 1)
        return time.perf_counter() - began

    def median(self, source: str, times: int) -> float:
        return statistics.median(self.seconds(source) for _ in range(times))


@contextmanager
def kernel() -> Iterator[Cells]:
    client = NotebookClient(new_notebook(), timeout=120, kernel_name="python3")
    with client.setup_kernel():
        yield Cells(client)


def figures() -> Iterator[Figure]:
    """Measure cells in turns, then `check`, then every notebook from top to bottom."""
    with kernel() as ours, kernel() as theirs:
        ours.seconds("%load_ext gradsync")
        ours.seconds(CELL)
        theirs.seconds(f"import tempfile\nSTORE = tempfile.mktemp()\n{CLUSTER}")
        theirs.seconds(GROUP)
        yield _first_cell(ours)
        yield _next_cell(ours, theirs)
        yield _deadlock(ours)
        theirs.seconds("cluster.stop_cluster_sync()")
    yield _check()
    yield from _all_notebooks()


def _first_cell(ours: Cells) -> Figure:
    times = []
    for _ in range(5):
        ours.seconds("%ranks reset")
        times.append(ours.seconds(CELL))
    first = statistics.median(times)
    return Figure(
        "the first `%%ranks 4` cell, an all-reduce", shown(first), "", None, "0.3 s", first <= 0.3
    )


def _next_cell(ours: Cells, theirs: Cells) -> Figure:
    pairs = [(ours.seconds(CELL), theirs.seconds(THEIRS)) for _ in range(11)]
    mine, other = (statistics.median(times) for times in zip(*pairs, strict=True))
    return Figure(
        "the next cell on the same ranks",
        shown(mine),
        f"ipyparallel's %%px: {shown(other)}",
        other / mine,
        "0.05 s",
        mine <= 0.05,
    )


def _deadlock(ours: Cells) -> Figure:
    explained = ours.median(DEADLOCK, 5)
    return Figure(
        "time until a deadlocked cell ends with its explanation",
        shown(explained),
        "",
        None,
        "1 s",
        explained < 1,
    )


def _check() -> Figure:
    """Measure `check` on some exercises in one notebook, with the code of `solutions/`."""
    course = find_course()
    slowest = ("", 0.0)
    with kernel() as cells:
        cells.seconds("%load_ext gradsync\nimport gradsync.notebook, torch")
        for exercise in map(course.find, EXERCISES):
            source = (course.root / "solutions" / exercise.phase / exercise.file).read_text()
            cells.seconds(source.replace('if __name__ == "__main__":\n    main()\n', ""))
            check = f"gradsync.notebook.check({exercise.id!r}, {exercise.name})"
            cells.seconds(check)
            slowest = max(
                slowest, (exercise.name, cells.median(check, 3)), key=lambda pair: pair[1]
            )
    name, duration = slowest
    return Figure(
        f"`gradsync.notebook.check`, the slowest of {len(EXERCISES)} ({name})",
        shown(duration),
        "",
        None,
        "2 s",
        duration <= 2,
    )


def _all_notebooks() -> Iterator[Figure]:
    with peak_memory() as peak:
        times = [run(read(source)) for source in sources([])]
    yield Figure(
        f"all {len(times)} self-study notebooks, one after the other",
        shown(sum(times)),
        f"the slowest: {shown(max(times))}",
        None,
        "8 minutes, 60 s each",
        sum(times) <= 480 and max(times) <= 60,
    )
    yield Figure(
        "memory of a kernel and its ranks, at most (PSS)",
        f"{peak[0] / 1e9:.2f} GB",
        "",
        None,
        "1.7 GB: hosted notebooks have 2, and Jupyter needs a part",
        peak[0] <= 1.7e9,
    )


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Yield a list with the most memory of this process's descendants so far, in bytes."""
    peak, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            peak[0] = max(peak[0], sum(map(_pss, psutil.Process().children(recursive=True))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def _pss(process: psutil.Process) -> int:
    """Return a process's share of memory, or 0 if it has ended."""
    with suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0
