"""Defer torch's symbolic shapes until a shape is symbolic.

A `backward` that receives a gradient compares two shapes with a function of this module, and so
imports sympy, which takes a fifth of torch's import time. Shapes are plain numbers unless code is
compiled.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from typing import Any

from gradsync.ranks.fast import uses
from gradsync.ranks.fast.deferral import Deferral, module_spec

PACKAGE = "torch.fx.experimental"  # torch imports this package itself
NAME = f"{PACKAGE}.symbolic_shapes"


def defer() -> None:
    """Defer symbolic shapes until one is needed, if torch is imported."""
    if NAME in sys.modules or PACKAGE not in sys.modules or not uses("symbolic_shapes"):
        return
    if spec := module_spec(NAME):
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
