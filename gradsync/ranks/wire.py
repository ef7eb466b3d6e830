"""Frames between the trusted side and a rank: a JSON header, then raw bytes.

A frame is `header length, body length` (two 32-bit big-endian integers), the header as JSON
with its `kind`, and the body. Nothing that comes back from a rank is ever unpickled, and a
frame over the limits ends the conversation before it is read into memory.
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from typing import Any

PREFIX = struct.Struct("!II")
MAX_HEADER = 16 * 2**20  # bytes
MAX_BODY = 2**30  # bytes


class WireError(Exception):
    """The other side broke the protocol: what it sent can't be read as a frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    kind: str
    header: dict[str, Any]
    body: bytes = b""


def pack(kind: str, header: dict[str, Any] | None = None, body: bytes = b"") -> bytes:
    """Return the bytes of one frame."""
    head = json.dumps({**(header or {}), "kind": kind}).encode()
    if len(head) > MAX_HEADER or len(body) > MAX_BODY:
        raise WireError(
            f"a {kind!r} frame of {len(head) + len(body):,} bytes is over the limit: "
            f"a rank's answer may have {MAX_BODY:,} bytes of tensors and {MAX_HEADER:,} of the rest"
        )
    return PREFIX.pack(len(head), len(body)) + head + body


def receive(channel: socket.socket) -> Frame | None:
    """Block for the next frame; None when the other side has closed."""
    prefix = _receive_exactly(channel, PREFIX.size)
    if prefix is None:
        return None
    head_length, body_length = _checked_lengths(prefix)
    head = _receive_exactly(channel, head_length)
    body = _receive_exactly(channel, body_length)
    return None if head is None or body is None else _frame(head, body)


class Decoder:
    """Turns the bytes of one channel, in whatever pieces they arrive, into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Take more bytes and return the frames they complete.

        Raises:
            WireError: the bytes are no frame, or one over the limits.
        """
        self._buffer += data
        frames = []
        while len(self._buffer) >= PREFIX.size:
            head_length, body_length = _checked_lengths(self._buffer[: PREFIX.size])
            body_start = PREFIX.size + head_length
            end = body_start + body_length
            if len(self._buffer) < end:
                break
            head = bytes(self._buffer[PREFIX.size : body_start])
            frames.append(_frame(head, bytes(self._buffer[body_start:end])))
            del self._buffer[:end]
        return frames


def _checked_lengths(prefix: bytes | bytearray) -> tuple[int, int]:
    head_length, body_length = PREFIX.unpack(prefix)
    if head_length > MAX_HEADER or body_length > MAX_BODY:
        raise WireError(f"a frame announces {head_length + body_length:,} bytes, over the limit")
    return head_length, body_length


def _frame(head: bytes, body: bytes) -> Frame:
    try:
        header = json.loads(head)
    except (ValueError, RecursionError):
        raise WireError("a frame's header is not JSON") from None
    if type(header) is not dict or type(header.get("kind")) is not str:
        raise WireError("a frame's header has no kind")
    return Frame(header.pop("kind"), header, body)


def _receive_exactly(channel: socket.socket, size: int) -> bytes | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = channel.recv_into(view)
        if count == 0:
            return None
        view = view[count:]
    return bytes(data)
