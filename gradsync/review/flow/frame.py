"""The names of a function while it runs."""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Iterator, MutableMapping

from gradsync.review.flow.project import Source
from gradsync.review.flow.values import (
    AGAIN,
    MAYBE_RANK,
    OWNS,
    RANK,
    TOO_EARLY,
    UNKNOWN,
    Code,
    Step,
    Value,
    either,
    uncertain,
)

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
        self.loops = 0  # number of loops around it
        self.me = ""  # the name of its first parameter, such as "self"
        self.returned: list[Value] = []
        self.yielded: list[Value] = []
        self.yielding: tuple[Value, ...] = ()  # what the loops around the last `yield` go over
        self.cleared: set[str] = set()  # names that have the same value on all ranks now
        self.global_names: set[str] = set()
        self.fixed: set[str] = set()  # parameters that are never assigned
        self.left: list[dict[str, Value]] = []  # the global names at each `return`

    def scope(self) -> Env:
        """Return the names that a function defined here can use, without the file's names."""
        return {} if self.env is self.module else ChainMap(self.env, self.outer)

    def set(self, name: str, value: Value) -> None:
        """Assign a value to a name."""
        (self.module if name in self.global_names else self.env)[name] = value

    def generator(self) -> Value:
        """Return the function's generator: its elements, and the loader that its loop goes over."""
        things = frozenset(t for over in self.yielding for t in over.of_kind("loader"))
        again = {AGAIN} if len(self.yielding) > 1 else set()
        return Value(things=things, tags=frozenset(again), parts=tuple(self.yielded))

    def set_all(self, package: str, env: Env | None) -> None:
        """Set the names of `from package import *`; None for a package that is not followed."""
        for name, value in (env or {}).items():
            self.env.setdefault(name, value)
        if env is None:
            self.module[f"*{package}"] = Value(path=package)

    def state(self) -> dict[str, Value]:
        """Return the names that the function's statements may change."""
        return {**self.env, **self.global_values()}

    def restore(self, state: dict[str, Value]) -> None:
        """Set all names to the values of a state."""
        self.env.clear()
        for name, value in state.items():
            self.set(name, value)

    def global_values(self) -> dict[str, Value]:
        """Return the names of the file that the function may assign."""
        return {name: self.module[name] for name in self.global_names if name in self.module}

    def set_globals(self) -> None:
        """At the end of the function, give its global names the values of any `return`."""
        if self.left and self.global_names:
            self.module.update(merged([*self.left, self.global_values()], Value()))

    def arguments_cleared(self, code: Code, step: Step) -> Iterator[ast.expr]:
        """Yield the arguments of a call that the function has reduced over all ranks."""
        if isinstance(code.node, ast.ClassDef) or not self.cleared:
            return
        parameters = code.node.args
        names = [arg.arg for arg in (*parameters.posonlyargs, *parameters.args)]
        bound = code.receiver is not None and not isinstance(code.node, ast.Lambda)
        passed = dict(zip(names[bound:], step.node.args, strict=False))
        passed |= {keyword.arg: keyword.value for keyword in step.node.keywords if keyword.arg}
        yield from (node for name, node in passed.items() if name in self.cleared)

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
    if isinstance(node, ast.UnaryOp) and ast.unparse(node) == "-1":
        return Value(const=-1)
    return Value(const=node.value) if isinstance(node, ast.Constant) else Value()


def merged(states: list[dict[str, Value]], test: Value) -> dict[str, Value]:
    """Return the names after branches: each may have its value from any branch."""
    if len(states) == 1:
        return states[0]
    found: dict[str, Value] = {}
    depends = test.tags & {RANK, MAYBE_RANK, TOO_EARLY}
    for name in {name for state in states for name in state}:
        values = [state[name] for state in states if name in state]
        value = values[0]
        for other in values[1:]:
            value = either(value, other)
        changed = any(other is not values[0] for other in values) or len(values) < len(states)
        if changed and depends:
            value = value.tagged(*depends)
            if not any(isinstance(other.const, (bool, int)) for other in values):
                value = uncertain(value)  # the branches may compute the same value
        if OWNS & test.tags and any(_differs(other, values[0]) for other in values):
            value = value.tagged(*OWNS & test.tags)  # such as a counter of epochs without progress
        found[name] = value
    return found


def _differs(one: Value, other: Value) -> bool:
    return one is not other and (one.const is UNKNOWN or one != other)
