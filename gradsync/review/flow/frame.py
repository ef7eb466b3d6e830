"""The names of a function while it runs."""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import MutableMapping

from gradsync.review.flow.project import Source
from gradsync.review.flow.values import Code, Value

Env = MutableMapping[str, Value]


class Frame:
    """The names of a function's run, or of a module."""

    def __init__(self, source: Source, module: Env, env: Env, outer: Env, name: str = "") -> None:
        self.source = source
        self.module = module  # the names of the file
        self.env = env  # the names of the function itself
        self.outer = outer  # the names of the functions around it
        self.name = name
        self.of_class: Code | None = None  # of a method
        self.guards = 0  # number of conditions around the call of the function
        self.me = ""  # the name of its first parameter, such as "self"
        self.returned: list[Value] = []
        self.global_names: set[str] = set()

    def scope(self) -> Env:
        """Return the names that a function defined here sees, beside those of the file."""
        return {} if self.env is self.module else ChainMap(self.env, self.outer)

    def set(self, name: str, value: Value) -> None:
        """Assign a value to a name."""
        (self.module if name in self.global_names else self.env)[name] = value

    def bind_parameters(
        self, code: Code, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> None:
        """Set a function's parameters from the arguments of a call and from its defaults."""
        if isinstance(code.node, ast.ClassDef):
            return
        parameters = code.node.args
        names = [arg.arg for arg in (*parameters.posonlyargs, *parameters.args)]
        if code.receiver is not None and not isinstance(code.node, ast.Lambda):
            args = (code.receiver, *args)
        if code.of_class is not None and names:
            self.me = names[0]
        every = [*names, *(arg.arg for arg in parameters.kwonlyargs)]
        self.env.update({name: Value() for name in every})
        defaults = parameters.defaults
        for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            self.env[name] = _constant(default)
        for arg, value in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True):
            self.env[arg.arg] = _constant(value)
        self.env.update(zip(names, args, strict=False))
        self.env.update({name: value for name, value in kwargs.items() if name in every})
        if parameters.vararg:
            self.env[parameters.vararg.arg] = Value(parts=args[len(names) :])
        if parameters.kwarg:
            rest = {name: value for name, value in kwargs.items() if name not in every}
            self.env[parameters.kwarg.arg] = Value(parts=tuple(rest.values()), keys=tuple(rest))


def _constant(node: ast.expr | None) -> Value:
    return Value(const=node.value) if isinstance(node, ast.Constant) else Value()
