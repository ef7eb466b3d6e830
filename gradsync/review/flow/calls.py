"""Record each call, and follow the calls of the script's own functions."""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import replace
from functools import reduce

from gradsync.review.flow import classes, torch_api
from gradsync.review.flow.expressions import Evaluator, attribute_of, value_of
from gradsync.review.flow.frame import Frame
from gradsync.review.flow.name_hints import by_name, of_environment
from gradsync.review.flow.values import (
    MAYBE_RANK,
    OWN,
    RANK,
    TOO_EARLY,
    WORLD,
    Code,
    Departure,
    Guard,
    Loop,
    Step,
    Thing,
    Value,
    either,
    escape,
    mixed,
    uncertain,
)

DEEPEST = 14  # nested calls
MOST_TIMES = 10  # that one function is followed, over all its calls
MOST_CALLS = 12_000  # of a program
SPAWN = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
PROCESS = ("torch.multiprocessing.Process", "multiprocessing.Process")
_CLEARS = (
    "all_reduce", "broadcast", "all_gather", "all_gather_into_tensor", "broadcast_object_list",
    "all_gather_object",
)  # fmt: skip
_CONTEXTS = ("contextmanager", "asynccontextmanager")
_AGREES = re.compile("reduce(?!_mean)|gather|broadcast|sync|aggregate|average|all_mean", re.I)
_ON_ONE_RANK = (
    "rank_zero_only", "rank0_only", "rank_zero", "master_only", "master_process_only",
    "main_process_only", "only_main_process", "on_main_process", "on_local_main_process",
)  # fmt: skip


class Calls(Evaluator):
    """The part of the interpreter that follows calls."""

    def __init__(self) -> None:
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
        self.tries = 0
        self.discard: ast.AST | None = None  # the call that is a complete statement

    def body(self, code: Code, frame: Frame) -> None:
        """Run the statements of a function."""
        raise NotImplementedError

    def call(self, node: ast.Call) -> Value:
        """Record a call, and return its result."""
        callee, receiver, method = self._callee(node)
        args, kwargs = self._arguments(node)
        path = callee.path if not callee.things else ""
        step = Step(
            index=len(self.steps), node=node, source=self.frame.source, function=self.frame.name,
            path=path, method=method, receiver=receiver, args=args, kwargs=kwargs,
            guards=tuple(self.guards), loops=tuple(self.loops), contexts=tuple(self.contexts),
            stack=tuple(self.stack), run=self.run, evaluating=self.evaluating > 0,
            in_try=self.tries > 0, discarded=self.discard is node,
        )  # fmt: skip
        if len(self.steps) >= MOST_CALLS:
            return Value()
        self.steps.append(step)
        step.result = self._result(step, callee)
        if callee.code is None and _AGREES.search(method or path.rpartition(".")[2]):
            step.result = step.result.cleared(OWN)  # it may be the same on all ranks now
            self._clear_arguments(step)
        self.collect(node.func, step)
        return step.result

    def _clear_arguments(self, step: Step) -> None:
        """Record that a call's first arguments are now the same on every rank."""
        for node in (*step.node.args[:2], *(keyword.value for keyword in step.node.keywords)):
            self.clear(node)

    def _callee(self, node: ast.Call) -> tuple[Value, Value, str]:
        func = node.func
        if not isinstance(func, ast.Attribute):
            return value_of(self, func), Value(), ""
        if self._is_super(func.value) and self.frame.of_class is not None:
            found = classes.in_bases(self, self.frame.of_class, func.attr)
            me = self.frame.env.get(self.frame.me, Value())
            if found is not None and found.code is not None:
                return Value(code=replace(found.code, receiver=me)), me, func.attr
            return Value(), me, func.attr
        receiver = value_of(self, func.value)
        if receiver.path and not receiver.things:
            return Value(path=f"{receiver.path}.{func.attr}"), Value(), ""
        callee: Value | None = None
        for thing in receiver.things:
            found = attribute_of(self, thing, func.attr)
            if found is not None:
                callee = found if callee is None else either(callee, found)
        code = receiver.code
        if callee is None and code is not None and isinstance(code.node, ast.ClassDef):
            callee = classes.find(self, code, func.attr)
        return callee or Value(), receiver, func.attr

    @staticmethod
    def _is_super(node: ast.expr) -> bool:
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "super"
        )

    def _arguments(self, node: ast.Call) -> tuple[tuple[Value, ...], dict[str, Value]]:
        args: list[Value] = []
        for arg in node.args:
            value = value_of(self, arg)
            args += value.parts if isinstance(arg, ast.Starred) and value.parts else [value]
        kwargs: dict[str, Value] = {}
        for keyword in node.keywords:
            value = value_of(self, keyword.value)
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
        if step.path:
            return self._of_path(step)
        models = callee.of_kind(*torch_api.MODELS)
        if models:
            return torch_api.output(step, Value(things=frozenset(models), maybe=callee.maybe))
        if step.receiver.things or step.receiver.tags:
            if step.receiver.of_kind("instance"):
                self._escape(step)
            return torch_api.result_of_method(step)
        if step.method in torch_api.MOVES:
            return step.receiver
        if callee.of_kind("loss") or step.method in ("backward", "item", "format"):
            return mixed([step.receiver, *step.args])
        if step.method and not step.receiver.blank:
            return uncertain(mixed([step.receiver, *step.args]))
        return self._unknown(step)

    def _of_path(self, step: Step) -> Value:
        name = step.path.rpartition(".")[2]
        if step.path == "torch.distributed.init_process_group":
            self.started = True
        if name == "partial" and step.args and step.args[0].code:
            return step.args[0]
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
            return mixed([*step.args, *step.kwargs.values()])
        return self._unknown(step)

    def _unknown(self, step: Step) -> Value:
        """Return the result of a function that we can't read; it may keep its arguments."""
        self._escape(step)
        self._call_back(step)
        values = [*step.args, *step.kwargs.values()]
        found = mixed(values)
        tags = found.tags & {WORLD, TOO_EARLY}
        if found.tags & {RANK, MAYBE_RANK}:
            tags |= {MAYBE_RANK}
        named = by_name(step.method or step.path.rpartition(".")[2])
        name = step.node.func
        if isinstance(name, ast.Name):
            named = by_name(name.id)
        return Value(things=found.things, tags=tags | named.tags)

    @staticmethod
    def _escape(step: Step) -> None:
        """Record that the arguments of a call are passed to a function that we can't read."""
        escape([*step.args, *step.kwargs.values()])

    def _call_back(self, step: Step) -> None:
        """Follow the script's functions that are passed to a function that we can't read."""
        for value in (*step.args, *step.kwargs.values()):
            code = value.code
            if code is None or isinstance(code.node, ast.ClassDef) or code.node in self.times:
                continue
            self.follow(code, step, (), {})

    def _spawn(self, step: Step) -> Value:
        """Follow the function that each new process runs."""
        rank = Value(tags=frozenset({RANK}))
        process = step.path in PROCESS
        target = step.argument(1, "target") if process else step.argument(0, "fn")
        passed = step.argument(3 if process else 1, "args") or Value()
        if target is not None and target.code is not None:
            self.spawned.add(step.node)
            args = passed.parts if process else (rank, *passed.parts)
            self.follow(target.code, step, args, {})
        return Value(things=frozenset({Thing("process", step)}))

    def follow(
        self, code: Code, step: Step, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> Value:
        """Run a function or a class of the script with these arguments."""
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
        return self._inside(code, step, frame)

    def _inside(self, code: Code, step: Step, frame: Frame) -> Value:
        previous, guards, tries = self.frame, len(self.guards), self.tries
        frame.guards, frame.loops = guards, len(self.loops)
        if classes.has_decorator(code.node, *_ON_ONE_RANK):
            self.guards.append(Guard(code.node, Value(tags=frozenset({RANK})), True))
        without_gradients = classes.has_decorator(code.node, "no_grad", "inference_mode")
        self.frame = frame
        self.stack.append(step.node)
        self.functions.append(code.node)
        self.evaluating += without_gradients
        try:
            self.body(code, frame)
        finally:
            self.frame = previous
            self.evaluating -= without_gradients
            self.stack.pop()
            self.functions.pop()
            self.tries = tries
            del self.guards[guards:]
        for argument in frame.arguments_cleared(code, step):
            self.clear(argument)
        if frame.yielded and classes.has_decorator(code.node, *_CONTEXTS):
            entered = reduce(either, frame.yielded)
            context = Thing("context", step, entered)
            return Value(frozenset({context}), by_name(frame.name).tags)
        result = reduce(either, frame.returned) if frame.returned else Value()
        return by_name(frame.name) if result.blank else result

    def _instance(
        self, code: Code, step: Step, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> Value:
        kind = classes.kind_of(self, code)
        thing = Thing(kind, step, args[0] if args and kind in ("sampler", "optimizer") else None)
        thing.of_class = code
        value = Value(things=frozenset({thing}))
        init = classes.find(self, code, "__init__")
        if init is not None and init.code is not None:
            self.follow(replace(init.code, receiver=value), step, args, kwargs)
        else:
            classes.set_fields(thing, code, args, kwargs)
        return value

    def property_of(self, thing: Thing, name: str) -> Value | None:
        """Return a method of an instance, or the value of its property."""
        if thing.of_class is None:
            return None
        found = classes.find(self, thing.of_class, name)
        if found is None or found.code is None:
            return found
        method = classes.bound(found, thing)
        if classes.has_decorator(found.code.node, "property", "cached_property") and self.steps:
            assert method.code is not None
            return self.follow(method.code, self.steps[-1], (), {})
        return method
