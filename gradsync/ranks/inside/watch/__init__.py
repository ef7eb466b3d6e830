"""Untrusted side: report every collective of this rank to the trusted side, before it starts."""

from __future__ import annotations

import functools
import os

from gradsync.ranks.inside.watch import futures, group_functions, process_group, threads
from gradsync.ranks.inside.watch.state import Watch


@functools.cache  # once per process; forked ranks inherit it
def install() -> Watch:
    """Observe process groups, futures and threads; call this before the default group starts.

    Returns:
        the object that all of these share. Nothing is reported before its `begin` is called.
    """
    watch = Watch()
    process_group.install(watch)
    futures.install(watch)
    group_functions.install(watch)
    threads.install()
    os.register_at_fork(after_in_child=watch.end)  # a child of this rank is not this rank
    return watch
