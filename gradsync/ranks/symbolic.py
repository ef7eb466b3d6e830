"""torch's symbolic shapes, put off until a shape is symbolic.

A `backward` with a gradient that is given compares two shapes with a function of theirs, and so
imports sympy, a fifth of what importing torch takes. The shapes are plain numbers where nothing is
compiled.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from gradsync.ranks.deferral import Deferral

PACKAGE = "torch.fx.experimental"  # which torch imports with itself
NAME = f"{PACKAGE}.symbolic_shapes"


def put_off() -> None:
    """Keep symbolic shapes from being imported until one is needed, where torch is imported."""
    if NAME in sys.modules or PACKAGE not in sys.modules:
        return
    spec = PathFinder.find_spec(NAME, sys.modules[PACKAGE].__path__)
    if spec is not None:
        _Shapes(spec).begin()


class _Shapes(Deferral):
    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(spec, {"expect_true": self._expect_true, "sym_eq": self._sym_eq})

    def _expect_true(self, holds: Any, *arguments: Any, **options: Any) -> Any:
        if type(holds) is bool:
            return holds
        self.run()
        return self.module.expect_true(holds, *arguments, **options)

    def _sym_eq(self, first: Any, second: Any) -> Any:
        if _is_plain(first) and _is_plain(second):
            return list(first) == list(second)
        self.run()
        return self.module.sym_eq(first, second)


def _is_plain(shape: Any) -> bool:
    return isinstance(shape, tuple) and all(type(side) is int for side in shape)
