"""Classes of the script: their methods, their bases and their instances."""

from __future__ import annotations

import ast
from dataclasses import replace

from gradsync.review.flow.values import Code, Thing, Value

_KIND_OF_BASE = {
    "Module": "model", "Sequential": "model", "Sampler": "sampler", "DistributedSampler": "sampler",
    "Dataset": "dataset", "IterableDataset": "dataset", "Optimizer": "optimizer",
    "DistributedDataParallel": "ddp",
}  # fmt: skip


def kind_of(cls: Code) -> str:
    """Return an instance's kind: "model", "sampler", "dataset", "optimizer" or "instance"."""
    if getattr(cls.node, "name", "") == "DistributedDataParallel":
        return "ddp"
    for base in cls.bases:
        if base.path.startswith(("torch.", "torchdata.")):
            name = base.path.rpartition(".")[2]
            if name in _KIND_OF_BASE:
                return _KIND_OF_BASE[name]
            if base.path.startswith("torch.nn."):
                return "model"
        if base.code and base.code.is_class:
            kind = kind_of(base.code)
            if kind != "instance":
                return kind
    return "instance"


def find(cls: Code, name: str) -> Value | None:
    """Return a method or an attribute of a class or of its bases, not bound to an instance."""
    assert isinstance(cls.node, ast.ClassDef)
    for node in cls.node.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return Value(code=Code(node, cls.source, cls.scope, cls.module, of_class=cls))
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            return Value(const=node.value.value) if isinstance(node.value, ast.Constant) else None
    return in_bases(cls, name)


def in_bases(cls: Code, name: str) -> Value | None:
    """Return a method of a class's bases, as `super()` finds it."""
    codes = [base.code for base in cls.bases if base.code and base.code.is_class]
    return next((found for code in codes if (found := find(code, name)) is not None), None)


def bound(found: Value, thing: Thing) -> Value:
    """Return a method of an instance."""
    code = found.code
    if code is None or has_decorator(code.node, "staticmethod"):
        return found
    return Value(code=replace(code, receiver=Value(things=frozenset({thing}))))


def has_decorator(node: ast.AST, *names: str) -> bool:
    """Return whether a function has one of these decorators, such as "property"."""
    for decorator in getattr(node, "decorator_list", ()):
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        last = getattr(target, "attr", getattr(target, "id", ""))
        if last in names:
            return True
    return False


def set_fields(thing: Thing, cls: Code, args: tuple[Value, ...], kwargs: dict[str, Value]) -> None:
    """Set the attributes of an instance of a dataclass, from the arguments of its call."""
    body = cls.node.body if isinstance(cls.node, ast.ClassDef) else []
    names = [
        node.target.id
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    thing.attrs.update(zip(names, args, strict=False))
    thing.attrs.update({name: value for name, value in kwargs.items() if name in names})
