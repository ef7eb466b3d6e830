"""Conditions around a call: what they say together."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

from gradsync.review.flow.values import MAYBE_RANK, RANK, Guard


def relevant(guards: Sequence[Guard]) -> tuple[Guard, ...]:
    """Return the conditions without those that hold on every rank because of the other ones.

    After `if not sharded and rank > 0: return`, no rank has left where `sharded` is true.
    """
    if not any(guard.value.tags & {RANK, MAYBE_RANK} for guard in guards):
        return tuple(guards)
    facts = facts_of(guards)
    return tuple(
        guard
        for guard in guards
        if not guard.value.tags & {RANK, MAYBE_RANK}
        or _truth(guard.test, facts) is not guard.positive
    )


def facts_of(guards: Iterable[Guard]) -> dict[str, bool]:
    """Return the expressions that are certainly true or false under conditions.

    Conditions that depend on the rank are left out.
    """
    equal = [guard for guard in guards if not guard.value.tags & {RANK, MAYBE_RANK}]
    pairs = (fact for g in reversed(equal) for fact in _facts(g.test, g.positive))
    return dict(pairs)  # the outer conditions hold, even if "equal to 1" meant something else


def _facts(test: ast.expr | None, sense: bool) -> Iterator[tuple[str, bool]]:
    """Yield the expressions that are certainly true or false if a test is true or false."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _facts(test.operand, not sense)
    elif isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) == sense:
            for operand in test.values:
                yield from _facts(operand, sense)
    elif test is not None:
        text, same = _plain(test)
        yield text, sense is same


def _truth(test: ast.expr | None, facts: Mapping[str, bool]) -> bool | None:
    """Return whether a test is true, if these facts decide it."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        truth = _truth(test.operand, facts)
        return None if truth is None else not truth
    if isinstance(test, ast.BoolOp):
        parts = [_truth(operand, facts) for operand in test.values]
        decisive = isinstance(test.op, ast.Or)  # one true operand decides `or`, one false `and`
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    if test is None:
        return None
    text, same = _plain(test)
    return None if text not in facts else facts[text] is same


def is_modulo(node: ast.expr) -> TypeGuard[ast.BinOp]:
    """Return whether an expression is `a % b`."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)


_OPPOSITES: dict[type[ast.cmpop], ast.cmpop] = {
    ast.NotEq: ast.Eq(),
    ast.IsNot: ast.Is(),
    ast.NotIn: ast.In(),
    ast.LtE: ast.Gt(),
}


def _plain(test: ast.expr) -> tuple[str, bool]:
    """Return a test without negation, and whether both mean the same: `a != b`, `a == b`, False."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        op, right = test.ops[0], test.comparators[0]
        if isinstance(op, ast.Eq) and ast.unparse(right) == "1":
            op = ast.LtE()  # of a number of ranks
        opposite = _OPPOSITES.get(type(op))
        plain = ast.Compare(test.left, [opposite or op], [right])
        return ast.unparse(plain), opposite is None
    return ast.unparse(test), True
