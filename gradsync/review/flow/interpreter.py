"""Follow a program from its entry point, without running Python, and record its calls.

One class does this. It reads from top to bottom: files, statements, conditions and loops, names,
expressions, calls. `values.py` explains the values that it computes. Statements run in order, and
both branches of a condition are taken; afterwards, a name may have its value from either branch
(`frame.merged`). The conditions and the loops around a place are kept in `guards` and `loops`, and
each call is recorded as a `Step` with these.

A statement of type X is run by the method `_x`, which returns how it ends: "return", "raise",
"break" or "continue"; others return nothing. An expression of type X is evaluated by the method
`_x`, which returns its `Value`.
"""

from __future__ import annotations

import ast
import builtins
import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from types import NoneType
from typing import Any

from gradsync.review.flow import classes, torch_api
from gradsync.review.flow.conditions import is_modulo, relevant
from gradsync.review.flow.frame import Env, Frame, merged
from gradsync.review.flow.name_hints import by_name, of_environment
from gradsync.review.flow.project import Project, Source
from gradsync.review.flow.torch_api import element_of
from gradsync.review.flow.values import (
    CLOCK,
    CUT,
    DATA,
    ELEMENT,
    EVAL,
    GLOBAL,
    GRAD,
    LOCAL,
    MAYBE_RANK,
    MEAN,
    OF_ONE_RANK,
    OWN,
    OWNS,
    RANK,
    REDUCED,
    SAME,
    SHARE,
    SPAWNED,
    TOO_EARLY,
    UNEVEN,
    UNKNOWN,
    UNSEEDED,
    WORLD,
    Code,
    Departure,
    Guard,
    Handler,
    Loop,
    Step,
    Thing,
    Value,
    either,
    escape,
    mixed,
    strided,
    uncertain,
)

DEEPEST = 14  # nested calls
MOST_TIMES = 10  # that one function is followed, over all its calls
MOST_CALLS = 12_000  # of a program
SPAWN = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
PROCESS = ("torch.multiprocessing.Process", "multiprocessing.Process")
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Lt: operator.lt, ast.LtE: operator.le,
}  # fmt: skip
LEAVES = ("return", "continue", "break")
_BUILTINS = frozenset(dir(builtins))
_EXITS = ("sys.exit", "builtins.exit", "builtins.quit", "os._exit", "os.abort")
_NO_GRADIENTS = ("torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad")
_MOST_PARTS = 8  # of a list to which values are appended
_COLLECTS = ("append", "appendleft", "extend", "insert", "add")
_CLEARS = (
    "all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "broadcast_object_list",
    "all_gather_object",
)  # fmt: skip
_ASKS_FOR_FILE = ("exists", "isfile", "isdir", "is_file", "is_dir")
_CONTEXTS = ("contextmanager", "asynccontextmanager")
_AGREES = re.compile("reduce(?!_mean)|gather|broadcast|sync|aggregate|average|all_mean", re.I)
_ON_ONE_RANK = (
    "rank_zero_only", "rank0_only", "rank_zero", "master_only", "master_process_only",
    "main_process_only", "only_main_process", "on_main_process", "on_local_main_process",
)  # fmt: skip


class Interpreter:
    """Follows a program from its entry point, and records its calls."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.modules: dict[Source, Env] = {}
        self.frame: Frame
        self.steps: list[Step] = []
        self.departures: list[Departure] = []
        self.guards: list[Guard] = []
        self.loops: list[Loop] = []
        self.contexts: list[Value] = []
        self.stack: list[ast.AST] = []
        self.functions: list[ast.AST] = []  # that are being followed, innermost last
        self.times: Counter[ast.AST] = Counter()
        self.started = False
        self.spawned: set[ast.AST] = set()
        self.run = 0
        self.evaluating = 0
        self.handlers: list[Handler] = []
        self.discard: ast.AST | None = None  # the call that is a complete statement

    def load(self, source: Source, *, as_main: bool) -> Env:
        """Run a file's own statements, once, and return its names."""
        if source in self.modules:
            return self.modules[source]
        env: Env = {"__name__": Value(const="__main__" if as_main else source.path)}
        self.modules[source] = env
        previous = getattr(self, "frame", None)
        outer = self.guards, self.loops, self.contexts
        self.frame = Frame(source, env, env, {})
        self.guards, self.loops, self.contexts = [], [], []
        self.block(source.tree.body)
        self.guards, self.loops, self.contexts = outer
        self.frame = previous or self.frame
        return env

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            source = self.project.find(self.frame.source, alias.name, 0)
            name = alias.asname or alias.name.partition(".")[0]
            if source is not None and (alias.asname or name == alias.name):
                self.frame.set(name, self._module(source))
            else:
                self.frame.set(name, Value(path=alias.name if alias.asname else name))

    def _importfrom(self, node: ast.ImportFrom) -> None:
        source = self.project.find(self.frame.source, node.module or "", node.level)
        env = self.load(source, as_main=False) if source is not None else None
        inside = f"{node.module}." if node.module else ""
        for alias in node.names:
            name = alias.asname or alias.name
            if alias.name == "*":
                self.frame.set_all(node.module or "", env)
            elif env is not None and alias.name in env:
                self.frame.set(name, env[alias.name])
            else:
                nested = self.project.find(self.frame.source, inside + alias.name, node.level)
                path = Value(path="." * node.level + inside + alias.name)
                self.frame.set(name, self._module(nested) if nested else path)

    def _module(self, source: Source) -> Value:
        thing = Thing("module", None)
        thing.attrs = self.load(source, as_main=False)  # type: ignore[assignment]
        return Value(things=frozenset({thing}))

    # Statements

    def block(self, statements: Sequence[ast.stmt]) -> str:
        """Run statements; return how they end: "return", "raise", "break", "continue" or ""."""
        for statement in statements:
            handler = getattr(self, f"_{type(statement).__name__.lower()}", self._other)
            end: str | None = handler(statement)
            if end:
                return end
        return ""

    def _other(self, node: ast.stmt) -> str:
        """Evaluate the expressions of another statement, such as `raise` or `assert`."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value_of(child)
        name = type(node).__name__.lower()
        return name if name in ("raise", "break", "continue") else ""

    def _expr(self, node: ast.Expr) -> str:
        self.discard = node.value
        self.value_of(node.value)
        ends = self.steps and self.steps[-1].node is node.value and self.steps[-1].path in _EXITS
        return "raise" if ends else ""

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        value = self.value_of(node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if node.value is not None:
                self.bind(target, value)

    _annassign = _assign

    def _augassign(self, node: ast.AugAssign) -> None:
        previous = self.value_of(node.target)
        self.bind(node.target, combined(node.op, previous, self.value_of(node.value)))

    def _return(self, node: ast.Return) -> str:
        value = self.value_of(node.value) if node.value else Value(const=None)
        self.frame.left.append(self.frame.global_values())
        flag = isinstance(value.const, bool)
        self.frame.returned.append(self._around(value, *OWNS) if flag else value)
        status = isinstance(value.const, int) and not flag and self.frame.name == "main"
        return "raise" if status and value.const else "return"

    def _global(self, node: ast.Global) -> None:
        self.frame.global_names.update(node.names)

    def _with(self, node: ast.With) -> str:
        contexts, no_gradients = len(self.contexts), 0
        for item in node.items:
            value = self.value_of(item.context_expr)
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
            values = next((s.values for s in reversed(self.steps) if s.node is node), [])
            named = re.search("first|main|master|zero", ast.unparse(node.func))
            if named or mixed(values).tags & {RANK, MAYBE_RANK}:
                return value.tagged(MAYBE_RANK)
        return value

    def _try(self, node: ast.Try) -> str:
        before = dict(self.frame.env)
        outer = len(self.handlers)
        self.handlers += [(handler, len(self.loops)) for handler in node.handlers]
        end = self.block(node.body)
        del self.handlers[outer:]
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

    def _functiondef(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        frame = self.frame
        for decorator in node.decorator_list:
            self.value_of(decorator)
        names = [n for n in getattr(node, "bases", ()) if isinstance(n, (ast.Name, ast.Attribute))]
        bases = tuple(self.value_of(name) for name in names)
        code = Code(node, frame.source, frame.scope(), frame.module, bases=bases)
        frame.set(node.name, Value(code=code))

    _asyncfunctiondef = _classdef = _functiondef

    # Conditions and loops

    def _if(self, node: ast.If) -> str:
        test = self.value_of(node.test)
        main_guard = getattr(getattr(node.test, "left", None), "id", "") == "__name__"
        certain = isinstance(node.test, ast.Constant) or main_guard
        known = isinstance(test.const, (bool, NoneType)) and self._is_about_a_parameter(node.test)
        if certain or known:
            return self.block(node.body if test.const else node.orelse)
        return self._branches(node, test, node.body, node.orelse)

    def _is_about_a_parameter(self, test: ast.expr) -> bool:
        """Return whether this is `x`, `not x` or `x > 1`, of an argument that never changes."""
        if isinstance(test, ast.BoolOp):  # its value is known only if such an operand decides
            return any(map(self._is_about_a_parameter, test.values))
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test = test.operand
        if isinstance(test, ast.Compare):
            test = test.left
        if isinstance(test, ast.Attribute):
            return test.attr == "training"  # known only in evaluation mode
        return isinstance(test, ast.Name) and test.id in self.frame.fixed

    def _branches(
        self, node: ast.AST, test: Value, one: Sequence[ast.stmt], other: Sequence[ast.stmt]
    ) -> str:
        """Run both branches of a condition, and merge the names after them."""
        frame, before = self.frame, self.frame.state()
        early: list[Guard] = []
        ends, after = [], []
        for positive, statements in ((True, one), (False, other)):
            base = len(self.guards)
            self.guards.append(Guard(node, test, positive))
            ends.append(self.block(statements))
            if not ends[-1]:  # otherwise, who continues was not in this branch
                early += self.guards[base + 1 :]
            del self.guards[base:]
            after.append(frame.state())
            frame.restore(before)
        self.guards += early
        if ends[0] and ends[1]:
            return ends[0] if ends[0] != "raise" else ends[1]
        for positive in (True, False):
            end = ends[0 if positive else 1]
            if end in LEAVES:
                self._note_departure(node, test, end)
                self.guards.append(Guard(node, self._around(test), not positive, early=True))
        stay = [names for names, end in zip(after, ends, strict=True) if not end]
        frame.restore(merged(stay, test))
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
                Departure(node, statement, frame.source, frame.name, value, loops)
            )

    def _around(self, value: Value, *also: str) -> Value:
        """Return a test or a flag with the rank tags of the conditions around it in its function.

        Args:
            value: the test or the flag.
            also: other tags of the conditions to add.
        """
        around = self.guards[self.frame.guards :]
        return value.tagged(*{t for g in around for t in g.value.tags & {RANK, MAYBE_RANK, *also}})

    def _match(self, node: ast.Match) -> None:
        subject = self.value_of(node.subject)
        for case in node.cases:
            self._branches(node, subject, case.body, [])

    def _for(self, node: ast.For) -> str:
        over = self.value_of(node.iter)
        self.bind(node.target, element_of(over))
        return self._loop(node, over)

    _asyncfor = _for

    def _while(self, node: ast.While) -> str:
        return self._loop(node, self.value_of(node.test))

    def _loop(self, node: ast.For | ast.While, over: Value) -> str:
        base = len(self.guards)
        self.loops.append(Loop(node, over))
        endless = isinstance(node, ast.While) and over.const is True
        if not endless and not over.of_kind("loader", "params"):
            counted = isinstance(node, ast.While) or _is_range(node.iter)
            test = over if counted else over.without(DATA, OWN)  # of elements, not of their number
            self.guards.append(Guard(node, test, True))
        self.block(node.body)
        if isinstance(node, ast.While) and not any(map(_calls_more, ast.walk(node.test))):
            self._note_departure(node, self.value_of(node.test), "break")
        if isinstance(node, ast.For) and not self.frame.cleared.isdisjoint(
            getattr(inner, "id", "") for inner in ast.walk(node.target)
        ):
            self.clear(node.iter)
        self.loops.pop()
        left = [g for g in self.guards[base:] if g.early and _is_return(g)]
        del self.guards[base:]
        self.guards += left
        return self.block(node.orelse)

    # Names

    def bind(self, target: ast.expr, value: Value) -> None:
        """Assign a value to a name, an attribute or several of them."""
        if isinstance(target, ast.Name):
            self.frame.set(target.id, value)
        elif isinstance(target, ast.Attribute):
            self._bind_attribute(target, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for number, part in enumerate(target.elts):
                longer = len(value.parts) > len(target.elts)  # a tuple of another `return`
                known = number < len(value.parts) and not isinstance(part, ast.Starred)
                known &= longer or len(value.parts) == len(target.elts)
                self.bind(part, value.parts[number] if known else self._part(value))
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value)
        elif isinstance(target, ast.Subscript):
            self.value_of(target.slice)
            self._bind_subscript(target, value)

    def entered(self, manager: Value) -> Value:
        """Return the value that `with` assigns to the name after `as`."""
        contexts = manager.of_kind("context")
        if contexts:
            return contexts[0].inner
        for thing in manager.of_kind("instance"):
            enter = self.method_of(thing, "__enter__")
            if enter is not None and self.steps:
                return self.follow(enter, self.steps[-1], (), {})
        return manager

    @staticmethod
    def _part(value: Value) -> Value:
        return Value(things=frozenset(value.deep()), tags=value.deep_tags(), maybe=True)

    def _bind_attribute(self, target: ast.Attribute, value: Value) -> None:
        owner = self.value_of(target.value)
        around = self._around(value, *OWNS)
        value = around if isinstance(value.const, bool) else value.tagged(*around.tags & OWNS)
        for thing in owner.things - set(owner.of_kind("params")):  # all of them, not one
            previous = thing.attrs.get(target.attr, value) if self.guards else value
            thing.attrs[target.attr] = either(previous, value)
        if isinstance(target.value, ast.Name) and owner.blank and not owner.path:
            holder = Thing("namespace", None)  # a parameter, such as `args`
            holder.attrs[target.attr] = value
            self.frame.set(target.value.id, Value(things=frozenset({holder})))

    def clear(self, node: ast.expr) -> None:
        """Record that a tensor, or each of several, is now the same on every rank."""
        while isinstance(node, (ast.Attribute, ast.Subscript)) and not _of_object(node):
            node = node.value
        for part in _parts_of(node):
            self.clear(part)
        if isinstance(node, (ast.Name, ast.Attribute)):
            value = self.value_of(node)
            if not value.path and value.code is None:
                self.bind(node, value.cleared(*OF_ONE_RANK))
            if isinstance(node, ast.Name):
                self.frame.cleared.add(node.id)

    def collect(self, function: ast.expr, step: Step) -> None:
        """Record that a list or a set gets a value that depends on samples or on the rank."""
        if step.method not in _COLLECTS or not isinstance(function, ast.Attribute):
            return
        plain = not step.receiver.things and not step.receiver.path and step.receiver.code is None
        tags = frozenset[str]().union(*(arg.deep_tags() for arg in step.args))
        if isinstance(function.value, ast.Name) and plain and tags:
            parts = (*step.receiver.parts[:_MOST_PARTS], step.args[-1])
            self.bind(function.value, replace(step.receiver, parts=parts))

    def _bind_subscript(self, target: ast.Subscript, value: Value) -> None:
        if self.value_of(target.value).path == "os.environ":
            set_item = ast.Attribute(target.value, "__setitem__")
            self._call(ast.copy_location(ast.Call(set_item, [target.slice, target], []), target))
            self.steps[-1].args = (self.steps[-1].args[0], value)
            return
        if isinstance(target.value, ast.Attribute) and value.tags & {RANK, MAYBE_RANK}:
            for thing in self.value_of(target.value.value).things:
                thing.attrs[target.value.attr] = Value(tags=frozenset({MAYBE_RANK}))
        if isinstance(target.value, ast.Name):
            previous = self.frame.env.get(target.value.id)
            name = self.value_of(target.slice).const
            for thing in previous.of_kind("instance", "namespace") if previous else ():
                thing.attrs[str(name)] = value
            if previous is not None and not previous.path and not previous.things:
                self.frame.set(target.value.id, _with_item(previous, name, value))

    # Expressions

    def value_of(self, node: ast.expr | None) -> Value:
        """Return the possible value of an expression, and record the calls in it."""
        if node is None:
            return Value()
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is not None:
            found: Value = handler(node)
            return found
        children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return mixed([self.value_of(child) for child in children])

    def _constant(self, node: ast.Constant) -> Value:
        return Value(const=node.value)

    def _joinedstr(self, node: ast.JoinedStr) -> Value:
        parts = [self.value_of(getattr(part, "value", part) if isinstance(part, ast.FormattedValue)
                               else part) for part in node.values]  # fmt: skip
        known = all(part.const is not UNKNOWN for part in parts)
        text = "".join(str(part.const) for part in parts) if known else UNKNOWN
        return replace(mixed(parts), const=text)

    def _name(self, node: ast.Name) -> Value:
        frame = self.frame
        for env in (frame.env, frame.outer, frame.module):
            if node.id in env:
                found = env[node.id]
                named = by_name(node.id) if found.blank else found
                return found if named.blank else named
        if node.id in _BUILTINS:
            return Value(path=f"builtins.{node.id}")
        starred = torch_api.from_star(node.id, frame.module)
        if starred:
            return Value(path=starred)
        return by_name(node.id)

    def _attribute(self, node: ast.Attribute) -> Value:
        base = self.value_of(node.value)
        name = node.attr
        if base.path and not base.things:
            return Value(path=f"{base.path}.{name}")
        found: Value | None = None
        for thing in base.of_kind(*base.kinds()):
            value = self.attribute_of(thing, name)
            if value is not None:
                found = value if found is None else either(found, value)
        if found is not None and not found.blank:
            named = by_name(name)
            unsure = base.maybe or (RANK in named.tags and isinstance(found.const, (int, NoneType)))
            return either(found, named) if unsure else found  # `rank = 0` may be a default
        if name == "grad":
            return base.tagged(GRAD)
        if name in ("data", "T", "values"):
            return base
        if name in ("shape", "device", "dtype", "ndim", "is_cuda"):
            return Value()
        kept = base.tags & {DATA, OWN, EVAL, CUT, WORLD}
        if base.tags & {RANK, MAYBE_RANK}:
            kept |= base.tags & {RANK, LOCAL} if name == "index" else {MAYBE_RANK}
        outputs = frozenset(base.of_kind("output"))  # such as the loss in it
        inherited = Value(outputs, kept) if outputs or not base.things else Value()
        named = by_name(name)
        return named if not named.blank else inherited

    def attribute_of(self, thing: Thing, name: str) -> Value | None:
        """Return an attribute of an object; None if nothing is known about it."""
        if name in thing.attrs:
            return thing.attrs[name]
        if name == "training" and thing.evaluates:
            return Value(const=False)
        if name == "module" and thing.kind in ("ddp", "fsdp"):
            return thing.inner
        if name == "_orig_mod" and thing.kind == "compiled":
            return thing.inner
        if (
            thing.kind == "loader"
            and thing.step
            and name in ("sampler", "batch_sampler", "dataset")
        ):
            position = {"dataset": 0, "sampler": 3, "batch_sampler": 4}[name]
            return thing.step.argument(position, name)
        if thing.kind == "batch sampler" and name == "sampler":
            return thing.inner
        return self.property_of(thing, name)

    def _subscript(self, node: ast.Subscript) -> Value:
        base = self.value_of(node.value)
        if isinstance(node.slice, ast.Slice):
            return self._sliced(base, node.slice)
        key = self.value_of(node.slice)
        if base.path == "os.environ":
            return of_environment(key.const)
        item = base.item(key.const)
        if item is not None:
            return item
        if isinstance(key.const, str):
            for thing in base.things:
                if key.const in thing.attrs:
                    return thing.attrs[key.const]
            named = by_name(key.const)
            if base.keys or (not named.blank and not base.things):
                return replace(named, tags=named.tags | base.tags)  # an item that was not set
        return _part(base, key)

    def _sliced(self, base: Value, node: ast.Slice) -> Value:
        first, last, stride = (
            self.value_of(limit) for limit in (node.lower, node.upper, node.step)
        )
        found = strided(_part(base, mixed([first, last, stride])), first, stride)
        moves = node.lower is not None and not isinstance(node.lower, ast.Constant)
        return found.tagged(SAME) if moves and not found.tags & OF_ONE_RANK else found

    def _binop(self, node: ast.BinOp) -> Value:
        return combined(node.op, self.value_of(node.left), self.value_of(node.right))

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        value = self.value_of(node.operand)
        if isinstance(node.op, ast.USub) and isinstance(value.const, int):
            return Value(const=-value.const)
        if isinstance(node.op, ast.Not) and isinstance(value.const, (bool, NoneType)):
            return Value(const=not value.const)
        return _truth([value]) if isinstance(node.op, ast.Not) else mixed([value])

    def _compare(self, node: ast.Compare) -> Value:
        left = self.value_of(node.left)
        rights = [self.value_of(right) for right in node.comparators]
        found = mixed([left, *rights])
        if len(rights) == 1 and _asks_if_distributed(node.ops[0], left, rights[0]):
            return found.without(RANK, LOCAL, MAYBE_RANK).tagged(WORLD)
        if is_modulo(node.left) and WORLD in left.tags and RANK in rights[0].tags:
            return found.without(RANK).tagged(MAYBE_RANK, SHARE)  # true for every n-th number
        if isinstance(node.ops[0], (ast.In, ast.NotIn)):
            if rights[0].path == "os.environ":
                return Value(tags=frozenset({WORLD}))
            return found if left.const is UNKNOWN else found.without(DATA, OWN)
        compare = _COMPARISONS.get(type(node.ops[0]))
        kinds = (k for k in (int, str) if isinstance(left.const, k) and len(rights) == 1)
        if compare is not None and any(isinstance(rights[0].const, kind) for kind in kinds):
            return replace(found, const=compare(left.const, rights[0].const))
        if isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            return self._is_none(node.ops[0], left, rights[0]) or Value(tags=found.tags & {WORLD})
        return found

    @staticmethod
    def _is_none(op: ast.cmpop, left: Value, right: Value) -> Value | None:
        """Return the constant result of `left is None`; None if it is not known."""
        ranked = RANK in left.tags  # such as an argument that is None without other ranks
        if right.const is not None or left.maybe or (left.tags and not ranked):
            return None
        none = left.const is None
        known = none or ranked or left.things or left.code or left.const is not UNKNOWN
        return Value(const=none == isinstance(op, ast.Is)) if known else None

    def _ifexp(self, node: ast.IfExp) -> Value:
        test = self.value_of(node.test)
        if isinstance(test.const, (bool, NoneType)) and self._is_about_a_parameter(node.test):
            return self.value_of(node.body if test.const else node.orelse)
        one = self._under(Guard(node, test, True), node.body)
        if ast.unparse(node.test) == "torch.cuda.is_available()":
            return one  # such as "cuda"; GPUs are what most programs are written for
        other = self._under(Guard(node, test, False), node.orelse)
        if one is other:
            return one
        both = either(one, other)
        return replace(both, tags=both.tags | (test.tags & {RANK, MAYBE_RANK, TOO_EARLY, *OWNS}))

    def _boolop(self, node: ast.BoolOp) -> Value:
        found = self.value_of(node.values[0])
        values = [found]
        for operand in node.values[1:]:
            guard = Guard(node, _truth(values), isinstance(node.op, ast.And))
            values.append(self._under(guard, operand))
            found = either(found, values[-1])
        decisive = isinstance(node.op, ast.Or)  # one true operand decides `or`, one false `and`
        pairs = zip(node.values, values, strict=True)
        known = any(v.const is decisive and self._is_about_a_parameter(n) for n, v in pairs)
        return replace(found, tags=_truth(values).tags, const=decisive if known else UNKNOWN)

    def _under(self, guard: Guard, node: ast.expr) -> Value:
        """Evaluate an expression that Python evaluates only under a condition."""
        self.guards.append(guard)
        value = self.value_of(node)
        self.guards.pop()
        return value

    def _tuple(self, node: ast.Tuple | ast.List | ast.Set) -> Value:
        tags = frozenset() if node.elts else frozenset({ELEMENT})  # not a rank, such as `rank = []`
        return Value(parts=tuple(self.value_of(item) for item in node.elts), tags=tags)

    _list = _set = _tuple

    def _dict(self, node: ast.Dict) -> Value:
        keys = [self.value_of(key).const if key is not None else UNKNOWN for key in node.keys]
        return Value(parts=tuple(self.value_of(value) for value in node.values), keys=tuple(keys))

    def _listcomp(self, node: ast.expr) -> Value:
        for generator in getattr(node, "generators", ()):
            self.bind(generator.target, element_of(self.value_of(generator.iter)))
            for condition in generator.ifs:
                self.value_of(condition)
        if isinstance(node, ast.DictComp):
            self.value_of(node.key)
            return Value(parts=(self.value_of(node.value),))
        return Value(parts=(self.value_of(node.elt),))  # type: ignore[attr-defined]

    _setcomp = _generatorexp = _dictcomp = _listcomp

    def _lambda(self, node: ast.Lambda) -> Value:
        return Value(code=Code(node, self.frame.source, self.frame.scope(), self.frame.module))

    def _namedexpr(self, node: ast.NamedExpr) -> Value:
        value = self.value_of(node.value)
        self.bind(node.target, value)
        return value

    def _starred(self, node: ast.expr) -> Value:
        """Evaluate the expression after a `*` or an `await`."""
        return self.value_of(getattr(node, "value", None))

    _await = _starred

    def _yield(self, node: ast.Yield | ast.YieldFrom) -> Value:
        value = self.value_of(node.value)
        around = tuple(loop.over for loop in self.loops[self.frame.loops :])
        from_all = isinstance(node, ast.YieldFrom)
        self.frame.yielded.append(element_of(value) if from_all else value)
        self.frame.yielding = (*around, value) if from_all else around
        return Value()

    _yieldfrom = _yield

    # Calls

    def _call(self, node: ast.Call) -> Value:
        """Record a call, and return its result."""
        callee, receiver, method = self._callee(node)
        args, kwargs = self._arguments(node)
        for partial in callee.of_kind("partial"):
            if partial.step is not None:
                callee, args = partial.inner, (*partial.step.args[1:], *args)
                kwargs = {**partial.step.kwargs, **kwargs}
        path = callee.path if not callee.things else ""
        step = Step(
            index=len(self.steps), node=node, source=self.frame.source, function=self.frame.name,
            path=path, method=method, receiver=receiver, args=args, kwargs=kwargs,
            guards=relevant(self.guards), loops=tuple(self.loops), contexts=tuple(self.contexts),
            stack=tuple(self.stack), run=self.run, evaluating=self.evaluating > 0,
            handlers=tuple(self.handlers), discarded=self.discard is node,
        )  # fmt: skip
        if len(self.steps) >= MOST_CALLS:
            return Value()
        self.steps.append(step)
        step.result = self._result(step, callee)
        name = method or path.rpartition(".")[2] or getattr(node.func, "id", "")
        if callee.code is not None:
            if _AGREES.search(name) and any(s.collective for s in self.steps[step.index :]):
                step.result = step.result.cleared(*OF_ONE_RANK)
        elif _AGREES.search(name):
            step.result = step.result.cleared(OWN, EVAL)  # it may be the same on all ranks now
            self._clear_arguments(step)
        if name in _ASKS_FOR_FILE:  # no rank finds a file that is named after its own time
            step.result = step.result.without(CLOCK)
        self._mark_results(step)
        self.collect(node.func, step)
        return step.result

    def _clear_arguments(self, step: Step) -> None:
        """Record that a call's first arguments are now the same on every rank."""
        for node in (*step.node.args[:2], *(keyword.value for keyword in step.node.keywords)):
            self.clear(node)

    def _mark_results(self, step: Step) -> None:
        """Record what a call has written into its first argument."""
        node = step.node.args[0] if step.node.args else None
        if step.collective == "reduce":
            self._mark(node, RANK, REDUCED)  # only one rank has the sum
        elif step.path in ("random.shuffle", "numpy.random.shuffle"):
            self._mark(node, UNSEEDED)
        elif step.cuts_gradient:
            self._mark(node, CUT)

    def _callee(self, node: ast.Call) -> tuple[Value, Value, str]:
        func = node.func
        if not isinstance(func, ast.Attribute):
            return self.value_of(func), Value(), ""
        is_super = getattr(getattr(func.value, "func", None), "id", "") == "super"
        if is_super and self.frame.of_class is not None:
            found = classes.in_bases(self.frame.of_class, func.attr)
            me = self.frame.env.get(self.frame.me, Value())
            if found is not None and found.code is not None:
                return Value(code=replace(found.code, receiver=me)), me, func.attr
            return Value(), me, func.attr
        receiver = self.value_of(func.value)
        if receiver.path and not receiver.things:
            return Value(path=f"{receiver.path}.{func.attr}"), Value(), ""
        callee: Value | None = None
        for thing in receiver.things:
            found = self.attribute_of(thing, func.attr)
            if found is not None:
                callee = found if callee is None else either(callee, found)
        code = receiver.code
        if callee is None and code is not None and isinstance(code.node, ast.ClassDef):
            callee = classes.find(code, func.attr)
        return callee or Value(), receiver, func.attr

    def _arguments(self, node: ast.Call) -> tuple[tuple[Value, ...], dict[str, Value]]:
        args: list[Value] = []
        for arg in node.args:
            value = self.value_of(arg)
            args += value.parts if isinstance(arg, ast.Starred) and value.parts else [value]
        kwargs: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self.value_of(keyword.value)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            else:
                kwargs |= {k: v for k, v in zip(value.keys, value.parts, strict=False)
                           if isinstance(k, str)}  # fmt: skip
        return tuple(args), kwargs

    def _result(self, step: Step, callee: Value) -> Value:
        if step.path in SPAWN or step.path in PROCESS:
            return self._spawn(step)
        if callee.code is not None:
            return self.follow(callee.code, step, step.args, step.kwargs)
        return self._of_path(step) if step.path else self._of_object(step, callee)

    def _of_object(self, step: Step, callee: Value) -> Value:
        """Return the result of a call of an object, or of its method."""
        models = callee.of_kind(*torch_api.MODELS)
        if models:
            return self._forward(step, Value(things=frozenset(models), maybe=callee.maybe))
        if callee.of_kind("loss"):
            return mixed(step.values)
        for thing in callee.of_kind("instance"):
            method = self.method_of(thing, "__call__")
            if method is not None:
                return self.follow(method, step, step.args, step.kwargs)
        return self._of_method(step)

    def _of_method(self, step: Step) -> Value:
        """Return the result of a method that the script does not define."""
        receiver, values = step.receiver, [step.receiver, *step.args]
        if receiver.things or receiver.tags or isinstance(receiver.const, str):
            if receiver.of_kind("instance"):
                escape(step.values)
            if step.method == "register_hook":
                self._call_back(step, receiver.tagged(GRAD))
            step.unread = bool(receiver.things) and step.method not in torch_api.METHODS
            return torch_api.result_of_method(step)
        if step.method in torch_api.MOVES:
            return receiver
        if step.method in ("backward", "item"):
            return mixed(values)
        return (
            uncertain(mixed(values)) if step.method and not receiver.blank else self._unknown(step)
        )

    def _forward(self, step: Step, model: Value) -> Value:
        """Follow the `forward` of the script's own models, and return the output."""
        output = torch_api.output(step, model)
        for thing in [*model.things, *(t for m in model.things for t in m.inner.things)]:
            method = self.method_of(thing, "forward")
            if method is not None:
                found = self.follow(method, step, step.args, step.kwargs)
                output = output.tagged(*found.deep_tags() & {CUT})
        return output

    def _of_path(self, step: Step) -> Value:
        name = step.path.rpartition(".")[2]
        if step.path == "torch.distributed.init_process_group":
            self.started = True
            self._mark_rank(step)
        if name in torch_api.WRAPPERS:
            self._with_model(step)
        if step.path == "functools.partial" and step.args:
            partial = Thing("partial", step, step.args[0])
            return Value(things=frozenset({partial}), code=step.args[0].code)
        found = torch_api.result_of(step, started=self.started)
        if step.collective in _CLEARS:
            self._clear_arguments(step)
        if name in ("parse_args", "Namespace"):
            return Value(things=frozenset({Thing("namespace", step)}))
        if found is not None:
            return found
        if torch_api.well_known(step.path):
            self._call_back(step)
            if step.path in ("os.environ.get", "os.getenv") and step.args:
                return of_environment(step.args[0].const)
            found = mixed(step.values)
            return found if torch_api.computes(step.path) else uncertain(found)
        return self._unknown(step)

    def _mark_rank(self, start: Step) -> None:
        """Record that the variable that is passed as the rank differs between ranks."""
        node = next((k.value for k in start.node.keywords if k.arg == "rank"), None)
        value = start.kwargs.get("rank", Value())
        if value.const is UNKNOWN and RANK not in value.tags:
            self._mark(node, RANK)

    def _mark(self, node: ast.expr | None, *tags: str) -> None:
        """Add tags to the variable in an argument."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            value = self.value_of(node)
            if not value.path and value.code is None:
                gone = {MAYBE_RANK} & value.tags if RANK in tags else set()
                self.bind(node, replace(value, tags=value.tags - gone | set(tags)))

    def _with_model(self, step: Step) -> None:
        """Record that the unknown object that is wrapped or sharded is a model."""
        node: ast.expr | None = step.node.args[0] if step.node.args else None
        while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value  # `model.to(device)`
        known = step.args and (step.args[0].things or step.args[0].path or step.args[0].code)
        if isinstance(node, (ast.Name, ast.Attribute)) and not known:
            model = replace(self.value_of(node), things=frozenset({Thing("model", None)}))
            self.bind(node, model)
            step.args = (model, *step.args[1:])

    def _unknown(self, step: Step) -> Value:
        """Return the result of a function that we can't read; it may keep its arguments."""
        step.unread = True
        escape(step.values)
        self._call_back(step)
        found = mixed(step.values)
        tags = found.tags & {WORLD, TOO_EARLY, UNSEEDED}
        if found.tags & {RANK, MAYBE_RANK}:
            tags |= {MAYBE_RANK}
        name = getattr(step.node.func, "id", step.method or step.path.rpartition(".")[2])
        return Value(things=found.things, tags=tags | by_name(name).tags)

    def _call_back(self, step: Step, *args: Value) -> None:
        """Follow the script's functions that are passed to a function that we can't read."""
        for value in step.values:
            code = value.code
            if code is None or isinstance(code.node, ast.ClassDef) or code.node in self.times:
                continue
            self.follow(code, step, args, {}, known=False)

    def _spawn(self, step: Step) -> Value:
        """Follow the function that each new process runs."""
        rank = Value(tags=frozenset({RANK, SPAWNED}))
        process = step.path in PROCESS
        target = step.argument(1, "target") if process else step.argument(0, "fn")
        passed = step.argument(3 if process else 1, "args") or Value()
        if target is not None and target.code is not None:
            self.spawned.add(step.node)
            args = self._numbered(step, passed.parts) if process else (rank, *passed.parts)
            outer = self.guards  # also of a rank, which starts ranks of its own
            self.guards = [g for g in outer if not g.value.tags & {RANK, MAYBE_RANK}]
            self.follow(target.code, step, args, {})
            self.guards = outer
        return Value(things=frozenset({Thing("process", step)}))

    def _numbered(self, step: Step, passed: tuple[Value, ...]) -> tuple[Value, ...]:
        """Return the arguments of a process; the number of the loop that starts it is a rank."""
        node = next((k.value for k in step.node.keywords if k.arg == "args"), None)
        if not isinstance(node, ast.Tuple) or not self.loops:
            return passed
        counter = ast.unparse(getattr(self.loops[-1].node, "target", node))
        return tuple(
            value.tagged(RANK) if ast.unparse(part) == counter else value
            for part, value in zip(node.elts, passed, strict=True)
        )

    def follow(
        self,
        code: Code,
        step: Step,
        args: tuple[Value, ...],
        kwargs: dict[str, Value],
        *,
        known: bool = True,
    ) -> Value:
        """Run a function or a class of the script with these arguments.

        Args:
            code: the function or class.
            step: the call.
            args: its arguments.
            kwargs: its arguments by name.
            known: whether these are all arguments, so that the others have their defaults.
        """
        node = code.node
        if isinstance(node, ast.ClassDef):
            return self._instance(code, step, args, kwargs)
        too_often = self.times[node] >= MOST_TIMES or len(self.stack) >= DEEPEST
        if node in self.functions or too_often:
            return mixed(list(args)).tagged(*by_name(getattr(node, "name", "")).tags)
        self.times[node] += 1
        frame = Frame(code.source, code.module, {}, code.scope, getattr(node, "name", ""))
        frame.of_class = code.of_class
        frame.bind_parameters(code, args, kwargs)
        frame.fixed = _never_assigned(node) if known else set()
        return self._run_function(code, step, frame)

    def _run_function(self, code: Code, step: Step, frame: Frame) -> Value:
        previous, guards, handlers = self.frame, len(self.guards), len(self.handlers)
        frame.guards, frame.loops = guards, len(self.loops)
        if classes.has_decorator(code.node, *_ON_ONE_RANK):
            self.guards.append(Guard(code.node, Value(tags=frozenset({RANK})), True))
        without_gradients = classes.has_decorator(code.node, "no_grad", "inference_mode")
        self.frame = frame
        self.stack.append(step.node)
        self.functions.append(code.node)
        self.evaluating += without_gradients
        if isinstance(code.node, ast.Lambda):
            frame.returned.append(self.value_of(code.node.body))
        else:
            self.block(code.node.body)
        self.frame = previous
        self.evaluating -= without_gradients
        self.stack.pop()
        self.functions.pop()
        del self.handlers[handlers:]
        del self.guards[guards:]
        frame.set_globals()
        for argument in frame.arguments_cleared(code, step):
            self.clear(argument)
        if frame.yielded and not classes.has_decorator(code.node, *_CONTEXTS):
            return frame.generator()
        if frame.yielded:
            entered = reduce(either, frame.yielded)
            context = Thing("context", step, entered)
            return Value(frozenset({context}), by_name(frame.name).tags)
        result = reduce(either, frame.returned) if frame.returned else Value()
        return by_name(frame.name) if result.blank else result

    def _instance(
        self, code: Code, step: Step, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> Value:
        kind = classes.kind_of(code)
        inner = args[0] if args and kind in ("sampler", "optimizer", "ddp") else None
        thing = Thing(kind, step, inner)
        thing.of_class = code
        value = Value(things=frozenset({thing}))
        init = classes.find(code, "__init__")
        if init is not None and init.code is not None:
            self.follow(replace(init.code, receiver=value), step, args, kwargs)
        else:
            classes.set_fields(thing, code, args, kwargs)
        return value

    def method_of(self, thing: Thing, name: str) -> Code | None:
        """Return a method of the script's own for an instance."""
        found = self.property_of(thing, name)
        return found.code if found is not None else None

    def property_of(self, thing: Thing, name: str) -> Value | None:
        """Return a method of an instance, or the value of its property."""
        if thing.of_class is None:
            return None
        found = classes.find(thing.of_class, name)
        if found is None or found.code is None:
            return found
        method = classes.bound(found, thing)
        if classes.has_decorator(found.code.node, "property", "cached_property") and self.steps:
            assert method.code is not None
            return self.follow(method.code, self.steps[-1], (), {})
        return method


def _part(base: Value, key: Value) -> Value:
    tags = base.deep_tags() | (key.tags & {MAYBE_RANK, SAME})
    if RANK in key.tags:
        tags |= {MAYBE_RANK}  # the parts may be equal
    return Value(things=frozenset(base.deep()), tags=tags, maybe=len(base.parts) > 1)


def _truth(values: list[Value]) -> Value:
    """Return whether values are true; a collection is, whatever its elements are."""
    return mixed([replace(value, parts=()) for value in values])


def _with_item(base: Value, key: object, value: Value) -> Value:
    """Return a list or a dict after `base[key] = value`, such as `parts[rank] = own`."""
    if key is not UNKNOWN and key in base.keys:
        number = base.keys.index(key)
        parts, keys = (*base.parts[:number], value, *base.parts[number + 1 :]), base.keys
    else:
        parts, keys = (*base.parts, value), (*base.keys, key)
    tags = base.tags - {CUT}
    return Value(tags=tags, parts=parts, keys=keys if len(keys) == len(parts) else ())


def combined(op: ast.operator, left: Value, right: Value) -> Value:
    """Return the value of `left op right`."""
    if isinstance(op, ast.Add) and (left.parts or right.parts):
        return Value(parts=left.parts + right.parts, tags=left.tags | right.tags)
    if isinstance(left.const, int) and isinstance(right.const, int) and isinstance(op, ast.Mult):
        return Value(const=left.const * right.const)
    found = mixed([left, right]).without(GLOBAL, SPAWNED)
    if isinstance(op, ast.Sub) and RANK in left.tags & right.tags:
        return uncertain(found)  # such as `last - first` of this rank's samples: their number
    if LOCAL in found.tags and UNKNOWN is left.const is right.const:
        found = found.without(LOCAL)  # such as `node * ranks_per_node + local_rank`
    if isinstance(op, (ast.Div, ast.FloorDiv)):
        if WORLD in right.tags or right.const is not UNKNOWN:
            return found
        return found.tagged(MEAN, *([UNEVEN] if DATA in right.deep_tags() else []))
    if isinstance(op, ast.Mult) and WORLD not in found.tags:
        return found.without(MEAN, UNEVEN)
    return found


def _asks_if_distributed(op: ast.cmpop, left: Value, right: Value) -> bool:
    """Return whether this is `rank != -1`, `rank > -1` or `rank >= 0`: the same on every rank."""
    if RANK not in left.tags or not isinstance(right.const, int):
        return False
    return right.const == -1 or (right.const == 0 and isinstance(op, (ast.GtE, ast.Lt)))


def _never_assigned(node: ast.AST) -> set[str]:
    """Return the parameters of a function that keep the value of its call."""
    names = {inner.arg for inner in ast.walk(node) if isinstance(inner, ast.arg)}
    inside = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
    return names - {inner.id for inner in inside if isinstance(inner.ctx, ast.Store)}


def _is_within(inner: ast.AST, outer: ast.AST) -> bool:
    """Return whether a statement is inside of another one in the same function."""
    line, last = getattr(inner, "lineno", 0), getattr(outer, "end_lineno", None) or 0
    return getattr(outer, "lineno", 0) < line <= last


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("range", "trange")


def _calls_more(node: ast.AST) -> bool:
    """Return whether this is a call of anything but a method without arguments: `loss.item()`."""
    return isinstance(node, ast.Call) and bool(node.args or isinstance(node.func, ast.Name))


def _is_return(guard: Guard) -> bool:
    node = guard.node
    body = getattr(node, "body", []) if not guard.positive else getattr(node, "orelse", [])
    return any(isinstance(inner, ast.Return) for part in body for inner in ast.walk(part))


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
