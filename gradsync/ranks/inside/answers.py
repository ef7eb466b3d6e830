"""Untrusted side: what a rank answers to the trusted side."""

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
        nonce: shows the trusted side to which question this is the answer.
        roots: the folders of files whose lines an exception names.
    """
    try:
        tree, pieces = values.encode(compute())
        head = {"value": tree, "nonce": nonce}
        return wire.head("answer", head, sum(map(len, pieces))), pieces
    except BaseException as error:  # noqa: BLE001 - whatever is raised is reported as itself
        return wire.head("raised", describe_exception(error, roots), 0), []
