"""Follow a script's statements in order, without running Python; both branches are taken."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from gradsync.review.flow.assignments import Assignments
from gradsync.review.flow.expressions import combined, value_of
from gradsync.review.flow.frame import Frame, merged
from gradsync.review.flow.torch_api import element_of
from gradsync.review.flow.values import (
    MAYBE_RANK,
    RANK,
    Code,
    Departure,
    Guard,
    Loop,
    Value,
)

_EXITS = ("sys.exit", "builtins.exit", "builtins.quit", "os._exit", "os.abort")
_NO_GRADIENTS = ("torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad")
LEAVES = ("return", "continue", "break")


class Interpreter(Assignments):
    """Follows a program from its entry point, and records its calls."""

    def body(self, code: Code, frame: Frame) -> None:
        """Run the statements of a function."""
        if isinstance(code.node, ast.Lambda):
            frame.returned.append(value_of(self, code.node.body))
        elif not isinstance(code.node, ast.ClassDef):
            self.block(code.node.body)

    def block(self, statements: Sequence[ast.stmt]) -> str:
        """Run statements; return how they end: "return", "raise", "break", "continue" or ""."""
        for statement in statements:
            handler = getattr(self, f"_{type(statement).__name__.lower()}", None)
            end: str = handler(statement) if handler is not None else ""
            if end:
                return end
        return ""

    def _expr(self, node: ast.Expr) -> str:
        self.discard = node.value
        value_of(self, node.value)
        if isinstance(node.value, ast.Call) and self.steps and self.steps[-1].node is node.value:
            return "raise" if self.steps[-1].path in _EXITS else ""
        return ""

    def _assign(self, node: ast.Assign) -> str:
        value = value_of(self, node.value)
        for target in node.targets:
            self.bind(target, value)
        return ""

    def _annassign(self, node: ast.AnnAssign) -> str:
        if node.value is not None:
            self.bind(node.target, value_of(self, node.value))
        return ""

    def _augassign(self, node: ast.AugAssign) -> str:
        previous = value_of(self, node.target)
        self.bind(node.target, combined(node.op, previous, value_of(self, node.value)))
        return ""

    def _return(self, node: ast.Return) -> str:
        value = value_of(self, node.value) if node.value else Value(const=None)
        tags = {t for guard in self.guards for t in guard.value.tags if t in (RANK, MAYBE_RANK)}
        tags |= self.own()
        is_constant = isinstance(value.const, bool)
        self.frame.returned.append(value.tagged(*tags) if is_constant else value)
        status = isinstance(value.const, int) and not is_constant and self.frame.name == "main"
        return "raise" if status and value.const else "return"

    def _raise(self, node: ast.Raise) -> str:
        value_of(self, node.exc)
        return "raise"

    def _assert(self, node: ast.Assert) -> str:
        value_of(self, node.test)
        return ""

    def _break(self, _: ast.Break) -> str:
        return "break"

    def _continue(self, _: ast.Continue) -> str:
        return "continue"

    def _global(self, node: ast.Global) -> str:
        self.frame.global_names.update(node.names)
        return ""

    def _if(self, node: ast.If) -> str:
        test = value_of(self, node.test)
        if isinstance(node.test, ast.Constant) or self._is_main_guard(node.test):
            return self.block(node.body if test.const else node.orelse)
        return self._branches(node, test, node.body, node.orelse)

    def _is_main_guard(self, test: ast.expr) -> bool:
        return isinstance(test, ast.Compare) and getattr(test.left, "id", "") == "__name__"

    def _branches(
        self, node: ast.AST, test: Value, one: Sequence[ast.stmt], other: Sequence[ast.stmt]
    ) -> str:
        """Run both branches of a condition, and merge the names after them."""
        env, before = self.frame.env, dict(self.frame.env)
        early: list[Guard] = []
        ends, after = [], []
        for positive, statements in ((True, one), (False, other)):
            base = len(self.guards)
            self.guards.append(Guard(node, test, positive))
            ends.append(self.block(statements))
            early += self.guards[base + 1 :]
            del self.guards[base:]
            after.append(dict(env))
            env.clear()
            env.update(before)
        self.guards += early
        if ends[0] and ends[1]:
            return ends[0] if ends[0] != "raise" else ends[1]
        for positive in (True, False):
            end = ends[0 if positive else 1]
            if end in LEAVES:
                self._note_departure(node, test, end)
                self.guards.append(Guard(node, self._around(test), not positive, early=True))
        stay = [names for names, end in zip(after, ends, strict=True) if not end]
        env.clear()
        env.update(merged(stay, test))
        return ""

    def _note_departure(self, statement: ast.AST, test: Value, end: str) -> None:
        """Record that a rank leaves its loop, or all loops of its function, under a condition."""
        first = len(self.loops) - 1 if end == "break" else self.frame.loops
        loops = tuple(self.loops[first:]) if end != "continue" and self.loops else ()
        if loops:
            frame, node = self.frame, getattr(statement, "test", statement)
            inside = [g for g in self.guards[frame.guards :] if _is_within(g.node, loops[-1].node)]
            value = test.tagged(*{t for g in inside if not g.early for t in g.value.tags})
            self.departures.append(
                Departure(node, statement, frame.source, frame.name, value, loops, len(self.steps))
            )

    def _around(self, test: Value) -> Value:
        """Return a test with the rank tags of the conditions around it in its function."""
        around = self.guards[self.frame.guards :]
        return test.tagged(*{t for g in around for t in g.value.tags & {RANK, MAYBE_RANK}})

    def _match(self, node: ast.Match) -> str:
        subject = value_of(self, node.subject)
        for case in node.cases:
            self._branches(node, subject, case.body, [])
        return ""

    def _for(self, node: ast.For) -> str:
        over = value_of(self, node.iter)
        self.bind(node.target, element_of(over))
        return self._loop(node, over)

    _asyncfor = _for

    def _while(self, node: ast.While) -> str:
        return self._loop(node, value_of(self, node.test))

    def _loop(self, node: ast.For | ast.While, over: Value) -> str:
        base = len(self.guards)
        self.loops.append(Loop(node, over))
        endless = isinstance(node, ast.While) and over.const is True
        if not endless and not over.of_kind("loader", "params"):
            self.guards.append(Guard(node, over, True))
        self.block(node.body)
        if isinstance(node, ast.While) and not any(map(_calls_more, ast.walk(node.test))):
            self._note_departure(node, value_of(self, node.test), "break")
        if isinstance(node, ast.For) and self._names(node.target) & self.frame.cleared:
            self.clear(node.iter)
        self.loops.pop()
        left = [g for g in self.guards[base:] if g.early and _is_return(g)]
        del self.guards[base:]
        self.guards += left
        return self.block(node.orelse)

    @staticmethod
    def _names(target: ast.expr) -> set[str]:
        return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}

    def _with(self, node: ast.With) -> str:
        contexts, no_gradients = len(self.contexts), 0
        for item in node.items:
            value = value_of(self, item.context_expr)
            if self.steps and self.steps[-1].node is item.context_expr:
                no_gradients += self.steps[-1].path in _NO_GRADIENTS
            self.contexts.append(self._context(item.context_expr, value))
            if item.optional_vars is not None:
                self.bind(item.optional_vars, self.entered(value))
        self.evaluating += no_gradients
        end = self.block(node.body)
        self.evaluating -= no_gradients
        del self.contexts[contexts:]
        return end

    _asyncwith = _with

    def _context(self, node: ast.expr, value: Value) -> Value:
        """Return a context manager's value, tagged if ranks may enter it one after the other."""
        if isinstance(node, ast.Call) and not set(value.things) - set(value.of_kind("context")):
            step = next((s for s in reversed(self.steps) if s.node is node), None)
            args = [*step.args, *step.kwargs.values()] if step else []
            named = re.search("first|main|master|zero", ast.unparse(node.func))
            if named or any(arg.deep_tags() & {RANK, MAYBE_RANK} for arg in args):
                return value.tagged(MAYBE_RANK)
        return value

    def _try(self, node: ast.Try) -> str:
        before = dict(self.frame.env)
        self.tries += bool(node.handlers)
        end = self.block(node.body)
        self.tries -= bool(node.handlers)
        states = [] if end else [dict(self.frame.env)]
        for handler in node.handlers:
            self.frame.env.update(before)
            if not self.block(handler.body):
                states.append(dict(self.frame.env))
        if states:
            self.frame.env.update(merged(states, Value()))
        if not end:
            end = self.block(node.orelse)
        last = self.block(node.finalbody)
        return last or (end if not states else "")

    _trystar = _try

    def _functiondef(self, node: ast.FunctionDef) -> str:
        frame = self.frame
        for decorator in node.decorator_list:
            value_of(self, decorator)
        self.bind(
            ast.Name(node.name), Value(code=Code(node, frame.source, frame.scope(), frame.module))
        )
        return ""

    _asyncfunctiondef = _functiondef

    def _classdef(self, node: ast.ClassDef) -> str:
        frame = self.frame
        code = Code(node, frame.source, frame.scope(), frame.module)
        self.bind(ast.Name(node.name), Value(code=code))
        return ""


def _is_within(inner: ast.AST, outer: ast.AST) -> bool:
    """Return whether a statement is inside of another one in the same function."""
    line, last = getattr(inner, "lineno", 0), getattr(outer, "end_lineno", None) or 0
    return getattr(outer, "lineno", 0) < line <= last


def _calls_more(node: ast.AST) -> bool:
    """Return whether this is a call of anything but a method without arguments: `loss.item()`."""
    return isinstance(node, ast.Call) and bool(node.args or isinstance(node.func, ast.Name))


def _is_return(guard: Guard) -> bool:
    node = guard.node
    body = getattr(node, "body", []) if not guard.positive else getattr(node, "orelse", [])
    return any(isinstance(inner, ast.Return) for part in body for inner in ast.walk(part))
