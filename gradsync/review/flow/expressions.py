"""Evaluate expressions: return the value that each may have."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from gradsync.review.flow.frame import Frame
from gradsync.review.flow.name_hints import by_name, of_environment
from gradsync.review.flow.torch_api import element_of
from gradsync.review.flow.values import (
    DATA,
    GRAD,
    LOCAL,
    MAYBE_RANK,
    MEAN,
    OWN,
    RANK,
    TOO_EARLY,
    UNKNOWN,
    WORLD,
    Code,
    Step,
    Thing,
    Value,
    either,
    mixed,
    strided,
)

BUILTINS = frozenset(dir(builtins))


class Evaluator(Protocol):
    """The part of the interpreter that is needed to evaluate an expression."""

    frame: Frame

    def call(self, node: ast.Call) -> Value: ...

    def bind(self, target: ast.expr, value: Value) -> None: ...

    def clear(self, node: ast.expr) -> None: ...

    def collect(self, function: ast.expr, step: Step) -> None: ...

    def property_of(self, thing: Thing, name: str) -> Value | None: ...


def value_of(run: Evaluator, node: ast.expr | None) -> Value:
    """Return the possible value of an expression, and record the calls in it."""
    if node is None:
        return Value()
    handler = _HANDLERS.get(type(node))
    if handler is not None:
        return handler(run, node)
    children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    return mixed([value_of(run, child) for child in children])


def _constant(_: Evaluator, node: ast.Constant) -> Value:
    return Value(const=node.value)


def _name(run: Evaluator, node: ast.Name) -> Value:
    frame = run.frame
    for env in (frame.env, frame.outer, frame.module):
        if node.id in env:
            found = env[node.id]
            return by_name(node.id) if found.blank else found
    if node.id in BUILTINS:
        return Value(path=f"builtins.{node.id}")
    return by_name(node.id)


def _attribute(run: Evaluator, node: ast.Attribute) -> Value:
    base = value_of(run, node.value)
    name = node.attr
    if base.path and not base.things:
        return Value(path=f"{base.path}.{name}")
    found: Value | None = None
    for thing in base.of_kind(*{t.kind for t in base.things}):
        value = attribute_of(run, thing, name)
        if value is not None:
            found = value if found is None else either(found, value)
    if found is not None and not found.blank:
        return either(found, by_name(name)) if base.maybe else found
    if name == "grad":
        return base.tagged(GRAD)
    if name in ("data", "T", "values"):
        return base
    if name in ("shape", "device", "dtype", "ndim", "is_cuda"):
        return Value()
    inherited = Value(tags=base.tags & {DATA, OWN, WORLD}) if not base.things else Value()
    named = by_name(name)
    return named if not named.blank else inherited


def attribute_of(run: Evaluator, thing: Thing, name: str) -> Value | None:
    """Return an attribute of an object; None if nothing is known about it."""
    if name in thing.attrs:
        return thing.attrs[name]
    if name == "module" and thing.kind in ("ddp", "fsdp"):
        return thing.inner
    if name == "_orig_mod" and thing.kind == "compiled":
        return thing.inner
    if thing.kind == "loader" and thing.step and name in ("sampler", "batch_sampler", "dataset"):
        position = {"dataset": 0, "sampler": 3, "batch_sampler": 4}[name]
        return thing.step.argument(position, name)
    if thing.kind == "batch sampler" and name == "sampler":
        return thing.inner
    return run.property_of(thing, name)


def _subscript(run: Evaluator, node: ast.Subscript) -> Value:
    base = value_of(run, node.value)
    if isinstance(node.slice, ast.Slice):
        return _slice(run, base, node.slice)
    key = value_of(run, node.slice)
    if base.path == "os.environ":
        return of_environment(key.const)
    if key.const is not UNKNOWN and key.const in base.keys:
        return base.parts[base.keys.index(key.const)]
    if (
        isinstance(key.const, int)
        and not base.keys
        and -len(base.parts) <= key.const < len(base.parts)
    ):
        return base.parts[key.const]
    named = by_name(key.const) if isinstance(key.const, str) else Value()
    if not named.blank and not base.things:
        return named
    return _part(base, key)


def _slice(run: Evaluator, base: Value, node: ast.Slice) -> Value:
    first, last, stride = (value_of(run, limit) for limit in (node.lower, node.upper, node.step))
    return strided(_part(base, mixed([first, last, stride])), first, stride)


def _part(base: Value, key: Value) -> Value:
    tags = base.deep_tags() | (key.tags & {RANK, MAYBE_RANK})
    return Value(things=frozenset(base.deep()), tags=tags, maybe=len(base.parts) > 1)


def _binary(run: Evaluator, node: ast.BinOp) -> Value:
    return combined(node.op, value_of(run, node.left), value_of(run, node.right))


def combined(op: ast.operator, left: Value, right: Value) -> Value:
    """Return the value of `left op right`."""
    if isinstance(op, ast.Add) and (left.parts or right.parts):
        return Value(parts=left.parts + right.parts, tags=left.tags | right.tags)
    if isinstance(left.const, int) and isinstance(right.const, int) and isinstance(op, ast.Mult):
        return Value(const=left.const * right.const)
    found = mixed([left, right])
    if LOCAL in found.tags and UNKNOWN is left.const is right.const:
        found = found.without(LOCAL)  # such as `node * ranks_per_node + local_rank`
    if isinstance(op, (ast.Div, ast.FloorDiv)):
        return found if WORLD in right.tags or right.const is not UNKNOWN else found.tagged(MEAN)
    if isinstance(op, ast.Mult) and WORLD not in found.tags:
        return found.without(MEAN)
    return found


def _unary(run: Evaluator, node: ast.UnaryOp) -> Value:
    value = value_of(run, node.operand)
    if isinstance(node.op, ast.USub) and isinstance(value.const, int):
        return Value(const=-value.const)
    return mixed([value])


def _compare(run: Evaluator, node: ast.Compare) -> Value:
    left = value_of(run, node.left)
    rights = [value_of(run, right) for right in node.comparators]
    found = mixed([left, *rights])
    if len(rights) == 1 and _asks_if_distributed(node.ops[0], left, rights[0]):
        return found.without(RANK, LOCAL, MAYBE_RANK).tagged(WORLD)
    if isinstance(node.ops[0], (ast.In, ast.NotIn)):
        if rights[0].path == "os.environ":
            return Value(tags=frozenset({WORLD}))
        return found if left.const is UNKNOWN else found.without(DATA, OWN)
    if any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
        return Value(tags=found.tags & {WORLD})
    return found


def _asks_if_distributed(op: ast.cmpop, left: Value, right: Value) -> bool:
    """Return whether this is `rank != -1`, `rank > -1` or `rank >= 0`: the same on every rank."""
    if RANK not in left.tags or not isinstance(right.const, int):
        return False
    return right.const == -1 or (right.const == 0 and isinstance(op, (ast.GtE, ast.Lt)))


def _either(run: Evaluator, node: ast.IfExp) -> Value:
    test = value_of(run, node.test)
    one, other = value_of(run, node.body), value_of(run, node.orelse)
    both = either(one, other)
    return replace(both, tags=both.tags | (test.tags & {RANK, MAYBE_RANK, TOO_EARLY, OWN}))


def _boolean(run: Evaluator, node: ast.BoolOp) -> Value:
    values = [value_of(run, value) for value in node.values]
    found = values[0]
    for value in values[1:]:
        found = either(found, value)
    return replace(found, tags=mixed(values).tags, const=UNKNOWN)


def _sequence(run: Evaluator, node: ast.Tuple | ast.List | ast.Set) -> Value:
    return Value(parts=tuple(value_of(run, item) for item in node.elts))


def _dict(run: Evaluator, node: ast.Dict) -> Value:
    keys = [value_of(run, key).const if key is not None else UNKNOWN for key in node.keys]
    return Value(parts=tuple(value_of(run, value) for value in node.values), keys=tuple(keys))


def _comprehension(run: Evaluator, node: ast.expr) -> Value:
    for generator in getattr(node, "generators", ()):
        run.bind(generator.target, element_of(value_of(run, generator.iter)))
        for condition in generator.ifs:
            value_of(run, condition)
    if isinstance(node, ast.DictComp):
        value_of(run, node.key)
        return Value(parts=(value_of(run, node.value),))
    return Value(parts=(value_of(run, node.elt),))  # type: ignore[attr-defined]


def _lambda(run: Evaluator, node: ast.Lambda) -> Value:
    return Value(code=Code(node, run.frame.source, run.frame.scope(), run.frame.module))


def _assignment(run: Evaluator, node: ast.NamedExpr) -> Value:
    value = value_of(run, node.value)
    run.bind(node.target, value)
    return value


def _inside(run: Evaluator, node: ast.expr) -> Value:
    """Evaluate the expression after a `*`, an `await` or a `yield from`."""
    return value_of(run, getattr(node, "value", None))


def _yield(run: Evaluator, node: ast.Yield) -> Value:
    run.frame.yielded.append(value_of(run, node.value))
    return Value()


_HANDLERS: dict[type[ast.expr], Callable[..., Value]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Call: lambda run, node: run.call(node),
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.IfExp: _either,
    ast.Tuple: _sequence,
    ast.List: _sequence,
    ast.Set: _sequence,
    ast.Dict: _dict,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.DictComp: _comprehension,
    ast.Lambda: _lambda,
    ast.NamedExpr: _assignment,
    ast.Starred: _inside,
    ast.Await: _inside,
    ast.Yield: _yield,
    ast.YieldFrom: _inside,
}
