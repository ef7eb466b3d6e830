"""Frames between the trusted side and a rank: a JSON header, then raw bytes.

A frame consists of the lengths of header and body (two 32-bit big-endian integers), the header as
JSON with its `kind`, and the body. Data from a rank is never unpickled. A frame over the limits is
refused before it is read into memory.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PREFIX = struct.Struct("!II")
MAX_HEADER = 16 * 2**20  # bytes
MAX_ANSWER = 256 * 2**20  # bytes of tensors in a rank's answer
MAX_TASK = 2**31  # bytes of the function and its inputs, which the trusted side sends
ALIGNMENT = 16  # bytes: a body's offset in its frame is a multiple of this
GO = b"+"  # from the trusted side: the collective may start


class WireError(Exception):
    """The other side broke the protocol; the message continues a sentence: "it sent ..."."""


@dataclass(frozen=True, slots=True)
class Frame:
    kind: str
    header: dict[str, Any]
    body: bytes | memoryview = b""


def pack(
    kind: str, header: dict[str, Any] | None = None, body: bytes = b"", limit: int = MAX_ANSWER
) -> bytes:
    """Return the bytes of one frame."""
    return head(kind, header or {}, len(body), limit) + body


def head(kind: str, header: dict[str, Any], size: int, limit: int = MAX_ANSWER) -> bytes:
    """Return a frame's bytes before its body of `size` bytes, which is not copied."""
    data = json.dumps({**header, "kind": kind}).encode()
    data += b" " * (-(PREFIX.size + len(data)) % ALIGNMENT)  # tensors are views of the body
    if len(data) > MAX_HEADER or size > limit:
        raise WireError(
            f"the {kind!r} frame of {len(data) + size:,} bytes is over the limit of "
            f"{limit:,} bytes for tensors and {MAX_HEADER:,} bytes for the rest"
        )
    return PREFIX.pack(len(data), size) + data


def receive(channel: socket.socket, begun: bytes = b"") -> Frame | None:
    """Wait for the next frame, on a rank; return None if the trusted side has closed.

    Args:
        channel: the socket to read from.
        begun: the frame's first bytes, if they have already been read.
    """
    rest = _receive_exactly(channel, PREFIX.size - len(begun))
    if rest is None:
        return None
    prefix = begun + rest
    head_length, body_length = PREFIX.unpack(prefix)
    data = _receive_exactly(channel, head_length)
    body = _receive_exactly(channel, body_length)
    return None if data is None or body is None else Frame(*_read_head(data), body)


class Decoder:
    """Turns the bytes of one channel into frames, in whatever pieces they arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """The bytes of a frame that is not complete yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take more bytes and yield the frames they complete.

        Raises:
            WireError: the bytes are not a frame, or the frame is over the limits.
        """
        self._buffer += data
        while len(self._buffer) >= PREFIX.size:
            head_length, body_length = PREFIX.unpack_from(self._buffer)
            if head_length > MAX_HEADER or body_length > MAX_ANSWER:
                total = head_length + body_length
                raise WireError(f"it announced a frame of {total:,} bytes, which is over the limit")
            start = PREFIX.size + head_length
            end = start + body_length
            if len(self._buffer) < end:
                return
            kind, header = _read_head(bytes(self._buffer[PREFIX.size : start]))
            taken, self._buffer = self._buffer, self._buffer[end:]
            yield Frame(kind, header, memoryview(taken)[start:end])  # large tensors: not copied


def _read_head(data: bytes) -> tuple[str, dict[str, Any]]:
    """Return the kind and the header of a frame."""
    try:
        header = json.loads(data)
    except (ValueError, RecursionError):
        raise WireError("the header of its frame is not JSON") from None
    if type(header) is not dict or type(header.get("kind")) is not str:
        raise WireError("the header of its frame has no kind")
    return header.pop("kind"), header


def _receive_exactly(channel: socket.socket, size: int) -> bytes | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = channel.recv_into(view)
        if count == 0:
            return None
        view = view[count:]
    return bytes(data)
