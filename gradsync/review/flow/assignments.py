"""Assignments to names, and imports of names from other files."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from gradsync.review.flow.calls import Calls
from gradsync.review.flow.expressions import value_of
from gradsync.review.flow.frame import Env, Frame
from gradsync.review.flow.project import Project, Source
from gradsync.review.flow.values import (
    DATA,
    MAYBE_RANK,
    MEAN,
    OWN,
    RANK,
    SHARE,
    Step,
    Thing,
    Value,
    either,
)

_COLLECTS = ("append", "appendleft", "extend", "insert", "add")


class Assignments(Calls):
    """The part of the interpreter that assigns and imports."""

    def __init__(self, project: Project) -> None:
        super().__init__()
        self.project = project
        self.modules: dict[Source, Env] = {}

    def block(self, statements: Sequence[ast.stmt]) -> str:
        """Run statements."""
        raise NotImplementedError

    def load(self, source: Source, *, as_main: bool) -> Env:
        """Run a file's own statements, once, and return its names."""
        if source in self.modules:
            return self.modules[source]
        env: Env = {}
        self.modules[source] = env
        previous = getattr(self, "frame", None)
        self.frame = Frame(source, env, env, {})
        main = "__main__" if as_main else source.path
        env["__name__"] = Value(const=main)
        guards, loops, contexts = self.guards, self.loops, self.contexts
        self.guards, self.loops, self.contexts = [], [], []
        try:
            self.block(source.tree.body)
        finally:
            self.guards, self.loops, self.contexts = guards, loops, contexts
            if previous is not None:
                self.frame = previous
        return env

    def bind(self, target: ast.expr, value: Value) -> None:
        """Assign a value to a name, an attribute or several of them."""
        if isinstance(target, ast.Name):
            self.frame.set(target.id, value)
        elif isinstance(target, ast.Attribute):
            self._bind_attribute(target, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for number, part in enumerate(target.elts):
                known = number < len(value.parts) and len(value.parts) == len(target.elts)
                self.bind(part, value.parts[number] if known else self._part(value))
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value)
        elif isinstance(target, ast.Subscript):
            value_of(self, target.slice)
            self._bind_subscript(target, value)

    def entered(self, manager: Value) -> Value:
        """Return the value that `with` assigns to the name after `as`."""
        contexts = manager.of_kind("context")
        if contexts:
            return contexts[0].inner
        for thing in manager.of_kind("instance"):
            enter = self.property_of(thing, "__enter__")
            if enter is not None and enter.code is not None and self.steps:
                return self.follow(enter.code, self.steps[-1], (), {})
        return manager

    @staticmethod
    def _part(value: Value) -> Value:
        return Value(things=frozenset(value.deep()), tags=value.deep_tags(), maybe=True)

    def _bind_attribute(self, target: ast.Attribute, value: Value) -> None:
        owner = value_of(self, target.value)
        value = value.tagged(*self.own())
        for thing in owner.things:
            previous = thing.attrs.get(target.attr)
            sure = not self.guards or previous is None
            thing.attrs[target.attr] = (
                value if sure or previous is None else either(previous, value)
            )
        if isinstance(target.value, ast.Name) and owner.blank and not owner.path:
            holder = Thing("namespace", None)  # a parameter, such as `args`
            holder.attrs[target.attr] = value
            self.frame.set(target.value.id, Value(things=frozenset({holder})))

    def own(self) -> set[str]:
        """Return {OWN} if this place runs under a condition on this rank's samples, or set()."""
        guards = self.guards[self.frame.guards :]
        return {OWN} if any(OWN in guard.value.tags for guard in guards) else set()

    def clear(self, node: ast.expr) -> None:
        """Record that a tensor, or each of several, is now the same on every rank."""
        while isinstance(node, (ast.Attribute, ast.Subscript)) and not _of_object(node):
            node = node.value
        for part in _parts_of(node):
            self.clear(part)
        if isinstance(node, (ast.Name, ast.Attribute)):
            value = value_of(self, node)
            if not value.path and value.code is None:
                self.bind(node, value.cleared(DATA, OWN, RANK, MAYBE_RANK, MEAN, SHARE))
            if isinstance(node, ast.Name):
                self.frame.cleared.add(node.id)

    def collect(self, function: ast.expr, step: Step) -> None:
        """Record that a list or a set gets a value that depends on samples or on the rank."""
        if step.method not in _COLLECTS or not isinstance(function, ast.Attribute):
            return
        plain = not step.receiver.things and not step.receiver.path and step.receiver.code is None
        tags = frozenset[str]().union(*(arg.deep_tags() for arg in step.args))
        if isinstance(function.value, ast.Name) and plain and tags:
            self.bind(function.value, step.receiver.tagged(*tags))

    def _bind_subscript(self, target: ast.Subscript, value: Value) -> None:
        if value_of(self, target.value).path == "os.environ":
            set_item = ast.Attribute(target.value, "__setitem__")
            self.call(ast.copy_location(ast.Call(set_item, [target.slice, target], []), target))
            self.steps[-1].args = (self.steps[-1].args[0], value)
            return
        if isinstance(target.value, ast.Name):
            previous = self.frame.env.get(target.value.id)
            if previous is not None and not previous.path:
                parts = (*previous.parts, value)
                keys = (*previous.keys, value_of(self, target.slice).const)
                new = Value(previous.things, previous.tags, parts=parts,
                            keys=keys if len(keys) == len(parts) else ())  # fmt: skip
                self.frame.set(target.value.id, new)

    def _import(self, node: ast.Import) -> str:
        for alias in node.names:
            source = self.project.find(self.frame.source, alias.name, 0)
            if source is not None and alias.asname:
                self.frame.set(alias.asname, self._module(source))
            elif source is not None and "." not in alias.name:
                self.frame.set(alias.name, self._module(source))
            else:
                name = alias.asname or alias.name.partition(".")[0]
                path = alias.name if alias.asname else name
                self.frame.set(name, Value(path=path))
        return ""

    def _importfrom(self, node: ast.ImportFrom) -> str:
        source = self.project.find(self.frame.source, node.module or "", node.level)
        env = self.load(source, as_main=False) if source is not None else None
        for alias in node.names:
            name = alias.asname or alias.name
            if alias.name == "*":
                for key, value in (env or {}).items():
                    self.frame.env.setdefault(key, value)
            elif env is not None and alias.name in env:
                self.frame.set(name, env[alias.name])
            else:
                inside = f"{node.module}." if node.module else ""
                nested = self.project.find(self.frame.source, inside + alias.name, node.level)
                path = "." * node.level + inside + alias.name
                value = self._module(nested) if nested else Value(path=path)
                self.frame.set(name, value)
        return ""

    def _module(self, source: Source) -> Value:
        thing = Thing("module", None)
        thing.attrs = self.load(source, as_main=False)  # type: ignore[assignment]
        return Value(things=frozenset({thing}))


def _of_object(node: ast.Attribute | ast.Subscript) -> bool:
    """Return whether this is an attribute of a name, such as `self.total`."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)


def _parts_of(node: ast.expr) -> list[ast.expr]:
    """Return the tensors in an expression such as `(a, b)`, `enumerate(a)` or `a.values()`."""
    if isinstance(node, (ast.Tuple, ast.List)):
        return node.elts
    if isinstance(node, ast.Starred):
        return [node.value]
    if isinstance(node, ast.Call):
        owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [*owner, *node.args]
    return []
