"""The epochs that a training sets on its samplers."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch.utils.data import Sampler

SAMPLERS = "template_data_loader"  # the module of the submission that has them


@contextmanager
def epochs_set() -> Iterator[list[list[int]]]:
    """Note the arguments of `set_epoch` meanwhile, in a list for each of the submission's samplers.

    The list is complete afterwards; a sampler whose epoch is never set has no part in it.
    """
    noted: dict[int, tuple[Any, list[int]]] = {}  # the samplers too, so that no id is used again
    found: list[list[int]] = []
    module = vars(sys.modules.get(SAMPLERS, object)).values()
    kinds = {kind for kind in module if isinstance(kind, type) and issubclass(kind, Sampler)}
    with ExitStack() as stack:
        for kind in kinds:
            if plain := vars(kind).get("set_epoch"):
                stack.enter_context(patch.object(kind, "set_epoch", _noting(plain, noted)))
        yield found
    found += [epochs for _, epochs in noted.values()]


def _noting(
    plain: Callable[..., Any], noted: dict[int, tuple[Any, list[int]]]
) -> Callable[..., Any]:
    @functools.wraps(plain)
    def set_epoch(self: Any, epoch: Any) -> Any:
        number = int(epoch) if isinstance(epoch, (int, float)) else -1
        noted.setdefault(id(self), (self, []))[1].append(number)
        return plain(self, epoch)

    return set_epoch
