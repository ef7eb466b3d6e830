"""Call `read_rank_info` with environments, and report its values and errors."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from gradsync.ranks.protocol.user_files import file_and_line


def probe_rank_info(trainer: ModuleType, environs: Iterable[Mapping[str, str]]) -> list[Any]:
    """Return, for each environment, the five fields, None, or the error that was raised.

    An error is described by whether it is a ValueError, its type, its text and its line. A value
    that is not a RankInfo is described by its type.
    """
    return [answer_to(trainer, dict(environ)) for environ in environs]


def answer_to(trainer: ModuleType, environ: dict[str, str]) -> Any:
    read_rank_info = trainer.read_rank_info
    try:
        info = read_rank_info(environ)
        fields = ("rank", "world_size", "local_rank", "master_addr", "master_port")
        if info is not None and not all(hasattr(info, field) for field in fields):
            return {"refused": False, "strange": type(info).__name__}
        return info and [getattr(info, field) for field in fields]
    except (NotImplementedError, NameError):  # the environment is not the cause
        raise
    except Exception as error:
        where = line_of(error)
        if where is None:  # its parameters are wrong
            raise
        kind = {"refused": isinstance(error, ValueError), "error": type(error).__name__}
        return {**kind, "text": str(error), "where": where}


def line_of(error: BaseException) -> str | None:
    """Return "FILE:LINE", the innermost line in the called function's file, or None."""
    _, *frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    return file_and_line(own[-1].filename, own[-1].lineno) if own else None
