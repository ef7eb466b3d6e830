"""Untrusted side: a rank's answer to the trusted side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradsync.ranks.inside.exceptions import describe_exception
from gradsync.ranks.protocol import values, wire


def answer_of(
    compute: Callable[[], Any], nonce: str, roots: tuple[str, ...] = ()
) -> tuple[bytes, list[bytearray | memoryview]]:
    """Return the head of the frame with a function's result or exception, and its body's pieces.

    Args:
        compute: the function.
        nonce: identifies the run to which this answer belongs.
        roots: an exception's description names lines of the files in these folders only.
    """
    try:
        tree, pieces = values.encode(compute())
        head = {"value": tree, "nonce": nonce}
        return wire.head("answer", head, sum(map(len, pieces))), pieces
    except BaseException as error:  # noqa: BLE001 - any exception is reported
        return wire.head("raised", describe_exception(error, roots), 0), []
