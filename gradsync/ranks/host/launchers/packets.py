"""Trusted: messages between the fork launcher and its warm process, one JSON object per packet."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Sequence
from typing import Any

MAX_BYTES = 4096  # of a packet
MAX_DESCRIPTORS = 3  # the sockets of one rank


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets that keep packets apart."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(control: socket.socket, descriptors: Sequence[int] = (), **message: Any) -> None:
    """Send a message, and copies of open file descriptors.

    Raises:
        OSError: the other process has ended.
    """
    socket.send_fds(control, [json.dumps(message).encode()], descriptors)


def receive(control: socket.socket, *, wait: bool = True) -> dict[str, Any] | None:
    """Return the next message, with the key "fds" if it has file descriptors.

    Without `wait`, return {} if there is no message yet. Return None if the other process has
    ended, or if the socket's timeout has passed.
    """
    if not wait and not _has_arrived(control):
        return {}
    try:
        data, descriptors, _, _ = socket.recv_fds(control, MAX_BYTES, MAX_DESCRIPTORS)
    except OSError:
        return None
    if not data:
        return None
    return {**json.loads(data), **({"fds": descriptors} if descriptors else {})}


def _has_arrived(control: socket.socket) -> bool:
    """Return whether a message or the end can be read; `select` refuses descriptors above 1023."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    return bool(poll.poll(0))
