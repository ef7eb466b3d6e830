"""Untrusted side: which threads of this rank could still enter a collective.

A thread that waits for a condition, without a time limit, does nothing until another thread
notifies it. `queue.Queue`, `threading.Event` and the futures of pools wait like this, so neither an
idle listener nor a main thread that waits for a result hides a deadlock. In doubt, a thread counts
as able: then a deadlock ends at the time limit instead of being proved.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import thread as pools
from contextlib import contextmanager, suppress
from typing import Any

from gradsync.ranks.inside.watch import bystanders

# Modules of threads that never call a user's function. torch.compile starts tqdm's monitor.
OBSERVERS = ("gradsync.ranks.", "tqdm.", "tensorboard.")
# These don't either, but they may notify a thread that waits for a batch, or for compiled code.
SUPPLIERS = (
    *("torch.utils.data.", "torch._inductor."),
    *("multiprocessing.queues.", "multiprocessing.resource_sharer."),
)
POOL = "concurrent.futures.thread."
PROCESS_POOL = "multiprocessing.pool."  # also of threads
ALARMS = (
    *(signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD),
)


def nothing() -> None:
    """Do nothing: no rank is running."""


class Threads:
    """Counts the threads that could still enter a collective."""

    def __init__(self) -> None:
        self.changed: Callable[[], None] = nothing  # called when a thread can no longer act
        self.forget()

    def forget(self) -> None:
        """Forget all threads, in a new process. Another thread may have had the lock."""
        self._lock = threading.Lock()
        self._asleep: set[int] = set()  # threads that wait until they are notified
        self._joins: dict[int, threading.Thread] = {}  # thread -> the thread that it waits for
        # The threads that `threading` does not list: their numbers, or an object before they run.
        self._bare: set[object] = set()
        self._jobs = 0  # of thread pools, not complete
        self._bystanders: set[threading.Thread] = set()  # until another thread acts
        self.acts = 0  # how often a thread has begun to act that is no bystander

    def able(self, thread: int) -> int:
        """Count the threads other than this one that could still enter a collective."""
        with self._lock:
            able, others = self._able({thread})
            return len(able) + others

    def find_bystanders(self, waiting: Collection[int], acts: int) -> bool:
        """Find out whether all threads that are able, besides these, are bystanders.

        From then on they are not able, until a thread acts that is none of them.

        Args:
            waiting: threads that wait in calls.
            acts: the value of `acts` before these were looked up; if it has changed, one may act.

        Returns:
            whether this has changed which threads are able.
        """
        with self._lock:
            if acts != self.acts:
                return False
            able, others = self._able(waiting)
            if others or not able or not bystanders.are_bystanders(able):
                return False
            self._bystanders.update(able)
            if self._able(waiting)[0]:  # a thread that joins one of them acts when that has ended
                self._bystanders.clear()
            return bool(self._bystanders)

    def act(self) -> None:
        """Forget the bystanders: a thread may change what they can reach."""
        with self._lock:
            self._forget()

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Do the same, and keep the lock until the block ends."""
        with self._lock:
            self._forget()
            yield

    def _forget(self) -> None:
        self._bystanders.clear()
        self.acts += 1

    def _able(self, but: Collection[int]) -> tuple[list[threading.Thread], int]:
        """Return the threads except these that could act, and the number of unlisted ones."""
        alive = [(t, _origin(t)) for t in threading.enumerate() if t not in self._bystanders]
        users = {t for t, origin in alive if not origin.startswith((*OBSERVERS, *SUPPLIERS))}
        pool = {t for t, origin in alive if origin == PROCESS_POOL}
        if all(map(_is_idle, pool)):
            users -= pool
        if any(origin.startswith(SUPPLIERS) for _, origin in alive):
            asleep = set()
        else:
            asleep = self._asleep - ({threading.main_thread().ident} if _alarms() else set())
        workers = {t for t, origin in alive if origin == POOL and _waits_for_jobs(t)}
        jobs = self._jobs - sum(worker.ident in but for worker in workers)
        able = [
            other
            for other in users - workers
            if other.ident not in {*but, *asleep}
            # A thread in `join` can act as soon as the other thread has ended.
            and self._joins.get(other.ident or 0) not in users
        ]
        return able, min(max(jobs, 0), len(workers)) + len(self._bare.difference(but))

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """Mark this thread as waiting until another thread notifies it."""
        thread = threading.get_ident()
        with self._lock:
            self._asleep.add(thread)
        self.changed()
        try:
            yield
        finally:
            self.wake(thread)

    def wake(self, thread: int) -> None:
        """Mark a thread as able to act again."""
        with self.acting():
            self._asleep.discard(thread)

    @contextmanager
    def joining(self, joined: threading.Thread) -> Iterator[None]:
        """Mark this thread as waiting for another thread of this process to end."""
        thread = threading.get_ident()
        with self._lock:
            self._joins[thread] = joined
        self.changed()
        try:
            yield
        finally:
            with self.acting():
                self._joins.pop(thread, None)

    @contextmanager
    def bare(self, thread: object) -> Iterator[None]:
        """Count a thread that `threading` does not list as able until the block ends."""
        with self.acting():
            self._bare.add(thread)
        try:
            yield
        finally:
            with self._lock:
                self._bare.discard(thread)
            self.changed()

    def add_jobs(self, number: int) -> None:
        """Change the number of jobs of thread pools that are not complete."""
        with self.acting():
            self._jobs += number
        if number < 0:
            self.changed()


def _origin(thread: threading.Thread) -> str:
    """Return the module of the function that a thread runs, with a dot at its end."""
    if isinstance(thread, threading._DummyThread):  # bare, or torch's: see `Recorder.expect`
        return OBSERVERS[0]
    runs = getattr(thread, "_target", None) or type(thread)  # a class has `run`
    return f"{getattr(runs, '__module__', '')}."


def _waits_for_jobs(worker: threading.Thread) -> bool:
    """Return whether a pool's thread runs nothing but jobs: it may have an initializer."""
    arguments: tuple[Any, ...] = getattr(worker, "_args", ())
    return len(arguments) > 2 and arguments[2] is None


def _is_idle(thread: threading.Thread) -> bool:
    """Return whether a thread of `multiprocessing.pool` waits for jobs, and its pool has none."""
    arguments: tuple[Any, ...] = getattr(thread, "_args", ())
    jobs = [each for each in arguments if type(each).__name__ == "_PoolCache"]
    return not any(jobs) if jobs else _waits_for_jobs(thread)


def _alarms() -> bool:
    """Return whether a signal may call a function of the user's on the main thread."""
    return any(callable(signal.getsignal(number)) for number in ALARMS)


THREADS = Threads()  # of this process


def install() -> None:
    """Observe the ways in which threads start, sleep and end."""
    os.register_at_fork(after_in_child=THREADS.forget)
    _observe_conditions()
    _observe_ends()
    _observe_joins()
    _observe_bare_threads()
    _observe_pools()
    time.sleep = bystanders.sleep


def join_threads(report: Callable[[list[str]], None]) -> None:
    """Wait for the program's threads, as Python does before it exits: pools, then the others.

    Args:
        report: called with the names of the threads, if there are any besides those of pools.
    """
    pools._python_exit()
    ours = threading.current_thread()
    while others := [t for t in threading.enumerate() if t is not ours and not t.daemon]:
        report([thread.name for thread in others])
        for thread in others:
            thread.join()


def _observe_conditions() -> None:
    class ObservedCondition(threading.Condition):
        """A condition that marks the threads which wait for it without a time limit."""

        def __init__(self, lock: Any = None) -> None:
            super().__init__(lock)
            self._sleepers: deque[int] = deque()  # those threads, in order

        def wait(self, timeout: float | None = None) -> bool:
            if timeout is not None:
                return super().wait(timeout)
            thread = threading.get_ident()
            self._sleepers.append(thread)
            try:
                with THREADS.asleep():
                    return super().wait()
            finally:
                with suppress(ValueError):
                    self._sleepers.remove(thread)

        def notify(self, n: int = 1) -> None:
            # Threads are woken in the order in which they began to wait. This one may block right
            # after it has notified them, so they are able from now on.
            for _ in range(min(n, len(self._sleepers))):
                THREADS.wake(self._sleepers.popleft())
            super().notify(n)

    # A child process that a rank spawns unpickles it by this name, and gets Python's own class.
    ObservedCondition.__module__, ObservedCondition.__qualname__ = "threading", "Condition"
    threading.Condition = ObservedCondition  # type: ignore[misc]


def _observe_ends() -> None:
    thread_class: Any = threading.Thread
    original = thread_class._bootstrap_inner

    def run_to_the_end(thread: threading.Thread) -> None:
        original(thread)
        THREADS.act()
        THREADS.changed()

    thread_class._bootstrap_inner = run_to_the_end


def _observe_joins() -> None:
    original = threading.Thread.join

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        if timeout is not None or not thread.is_alive():
            return original(thread, timeout)
        with THREADS.joining(thread):
            return original(thread)

    threading.Thread.join = join  # type: ignore[method-assign, assignment]


def _observe_bare_threads() -> None:
    """Wrap the function that starts a thread; `threading` itself calls another name of it."""
    original = _thread.start_new_thread

    def start_new_thread(function: Callable[..., Any], *args: Any) -> int:
        started = threading.Lock()
        started.acquire()

        def run(*args: Any, **kwargs: Any) -> Any:
            with THREADS.bare(threading.get_ident()):
                started.release()
                return function(*args, **kwargs)

        with THREADS.bare(started):
            number = original(run, *args)
            started.acquire()
        return number

    _thread.start_new_thread = _thread.start_new = start_new_thread


def _observe_pools() -> None:
    """Count the jobs of thread pools: an idle worker does nothing before it gets one."""
    submit, run = ThreadPoolExecutor.submit, pools._WorkItem.run

    def observed_submit(pool: ThreadPoolExecutor, *args: Any, **kwargs: Any) -> Any:
        THREADS.add_jobs(1)
        try:
            return submit(pool, *args, **kwargs)
        except BaseException:
            THREADS.add_jobs(-1)
            raise

    def observed_run(job: Any, *args: Any) -> None:
        try:
            run(job, *args)
        finally:
            THREADS.add_jobs(-1)

    ThreadPoolExecutor.submit = observed_submit  # type: ignore[method-assign, assignment]
    pools._WorkItem.run = observed_run  # type: ignore[method-assign, assignment]
