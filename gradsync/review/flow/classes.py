"""Classes of the script: their methods, their bases and their instances."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from gradsync.review.flow.expressions import Evaluator, value_of
from gradsync.review.flow.frame import Frame
from gradsync.review.flow.values import Code, Thing, Value

_DEEPEST = 6  # bases of bases
_KIND_OF_BASE = {
    "Module": "model",
    "Sequential": "model",
    "Sampler": "sampler",
    "DistributedSampler": "sampler",
    "Dataset": "dataset",
    "IterableDataset": "dataset",
    "Optimizer": "optimizer",
    "DistributedDataParallel": "ddp",
}


def bases(run: Evaluator, cls: Code) -> Iterator[Value]:
    """Yield the classes that a class is derived from, as its file names them."""
    previous = run.frame
    run.frame = Frame(cls.source, cls.module, cls.scope, {})
    try:
        for base in cls.node.bases if isinstance(cls.node, ast.ClassDef) else ():
            if isinstance(base, (ast.Name, ast.Attribute)):
                yield value_of(run, base)
    finally:
        run.frame = previous


def kind_of(run: Evaluator, cls: Code, depth: int = 0) -> str:
    """Return an instance's kind: "model", "sampler", "dataset", "optimizer" or "instance"."""
    for base in list(bases(run, cls)):
        if base.path.startswith(("torch.", "torchdata.")):
            name = base.path.rpartition(".")[2]
            if name in _KIND_OF_BASE:
                return _KIND_OF_BASE[name]
            if base.path.startswith("torch.nn."):
                return "model"
        if base.code and isinstance(base.code.node, ast.ClassDef) and depth < _DEEPEST:
            kind = kind_of(run, base.code, depth + 1)
            if kind != "instance":
                return kind
    return "instance"


def find(run: Evaluator, cls: Code, name: str, depth: int = 0) -> Value | None:
    """Return a method or an attribute of a class or of its bases, not bound to an instance."""
    assert isinstance(cls.node, ast.ClassDef)
    for node in cls.node.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return Value(code=Code(node, cls.source, cls.scope, cls.module, of_class=cls))
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            return Value(const=node.value.value) if isinstance(node.value, ast.Constant) else None
    return in_bases(run, cls, name, depth)


def in_bases(run: Evaluator, cls: Code, name: str, depth: int = 0) -> Value | None:
    """Return a method of a class's bases, as `super()` finds it."""
    if depth < _DEEPEST:
        for base in list(bases(run, cls)):
            if base.code and isinstance(base.code.node, ast.ClassDef):
                found = find(run, base.code, name, depth + 1)
                if found is not None:
                    return found
    return None


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
