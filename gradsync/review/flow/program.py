"""A program: the calls of a script in the order in which they run.

A file has one program for the script itself, and one for each function or class that it never uses.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from gradsync.review.flow.conditions import facts_of
from gradsync.review.flow.interpreter import Interpreter
from gradsync.review.flow.project import Project, Source
from gradsync.review.flow.values import RANK, SPAWNED, Code, Departure, Step, Thing, Value

_TEST = re.compile(r"(^|/)(test_[^/]*|[^/]*_test|conftest)\.py$")
_SEVERAL = re.compile(
    r"(^|\.)(is_|use_)?(distributed|multi_?gpu(_flag|_mode)?)( == True)?$|world_?size > 1$"
)
_START = "torch.distributed.init_process_group"
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(eq=False)
class Program:
    """The calls from one entry point: the script itself, or a function that it never calls."""

    source: Source
    steps: list[Step]
    entry: bool  # begins where Python begins, not in an unused function
    sources: list[Source]  # of all files that were read for it
    departures: list[Departure] = field(default_factory=list)
    parent: list[Step] = field(default_factory=list)  # of the process that starts the ranks

    def calls(self, *paths: str) -> Iterator[Step]:
        """Yield the calls of imported names: complete paths, or ends such as "optim.SGD"."""
        for step in self.steps:
            if step.path and any(step.path == p or step.path.endswith("." + p) for p in paths):
                yield step

    def methods(self, *names: str) -> Iterator[Step]:
        """Yield the calls of methods with these names."""
        return (step for step in self.steps if step.method in names)

    def things(self, *kinds: str) -> list[Thing]:
        """Return the objects of these kinds, in the order in which the program makes them."""
        found = {
            id(thing): thing
            for step in self.steps
            for thing in step.result.things
            if thing.kind in kinds and thing.step is step
        }
        return list(found.values())

    def before(self, one: Step, other: Step) -> bool:
        """Return whether `one` certainly runs before `other`, if both run."""
        if one.run != other.run:
            return one.run == 0
        return one.index < other.index

    @cached_property
    def starts(self) -> list[Step]:
        """The calls of `init_process_group`, except for a group of one process."""
        return [step for step in self.calls(_START) if not _of_one(step)]

    @cached_property
    def backwards(self) -> list[Step]:
        """The backward passes."""
        return [step for step in self.methods("backward") if not step.path]

    @cached_property
    def wrappers(self) -> list[Thing]:
        """The models in DistributedDataParallel or FSDP."""
        return self.things("ddp", "fsdp")

    @cached_property
    def sharded(self) -> list[Step]:
        """The calls of FSDP2's `fully_shard`."""
        return list(self.calls("fully_shard"))

    @cached_property
    def averages_by_hand(self) -> list[Step]:
        """The all-reduces of gradients that the script itself calls."""
        return [
            step
            for step in self.steps
            if step.collective == "all_reduce" and step.args and "grad" in step.args[0].tags
        ]

    @cached_property
    def spawns_per_machine(self) -> bool:
        """Whether `mp.spawn` starts the ranks of one of several machines."""
        ranks = [start.kwargs.get("rank", Value()).tags for start in self.starts]
        return bool(self.parent) and any(RANK in tags and SPAWNED not in tags for tags in ranks)

    @cached_property
    def is_test(self) -> bool:
        """Whether its file is a test, which chooses ranks and ports for itself."""
        text = self.source.text
        runs = "__main__" in text and "def test" not in text
        return "import pytest" in text or (bool(_TEST.search(self.source.path)) and not runs)

    @property
    def whole(self) -> bool:
        """Whether it starts a process group and trains, so no important part is elsewhere."""
        trains = self.backwards or self.wrappers or self.sharded
        return bool(self.starts and trains) and not self.is_test

    @property
    def data_parallel(self) -> bool:
        """Whether it is a complete program in which all ranks train one model."""
        return self.whole and bool(self.wrappers or self.sharded or self.averages_by_hand)


def programs(project: Project, source: Source) -> Iterator[Program]:
    """Yield the program of this file as a script, then a program for each unused definition."""
    interpreter = Interpreter(project)
    env = interpreter.load(source, as_main=True)
    yield _program(interpreter, source, entry=True)
    for node in _callers_first(source):
        if node in interpreter.times or _is_used(node, interpreter):
            continue
        value = env.get(node.name)
        if value is not None and value.code is not None and value.code.node is node:
            yield _fragment(interpreter, source, value.code)


def _program(interpreter: Interpreter, source: Source, *, entry: bool) -> Program:
    steps, parent = interpreter.steps, []
    starts = [step for step in steps if step.path == _START]
    ranks = {node for start in starts for node in interpreter.spawned.intersection(start.stack)}
    if ranks:  # the other calls run once, in the process that starts the ranks
        parent = [step for step in steps if not ranks.intersection(step.stack)]
        steps = [step for step in steps if ranks.intersection(step.stack)]
    starts = [step for step in starts if step not in parent]
    steps = [step for step in steps if not _in_another_mode(step, starts)]
    parent = [step for step in parent if not _in_another_mode(step, starts)]
    return Program(source, steps, entry, list(interpreter.modules), interpreter.departures, parent)


def _in_another_mode(step: Step, starts: list[Step]) -> bool:
    """Return whether a call runs only where no process group is made, such as on one GPU."""
    facts = facts_of(step.guards) if starts and step.guards else {}
    if not facts:
        return False
    others = [facts_of(start.guards) for start in starts]
    if _of_one_process(facts) and not all(map(_of_one_process, others)):
        return True
    return all(_contradict(facts, other) for other in others)


def _of_one_process(facts: dict[str, bool]) -> bool:
    """Return whether there is one process: the other branch of `if args.distributed`."""
    return any(not sense and _SEVERAL.search(text) for text, sense in facts.items())


def _contradict(some: dict[str, bool], others: dict[str, bool]) -> bool:
    return any(
        others.get(text, sense) is not sense
        for text, sense in some.items()
        if "is_initialized" not in text  # this changes when the group is made
    )


def _of_one(start: Step) -> bool:
    """Return whether the number of ranks is written as 1 in the call."""
    size = next((k.value for k in start.node.keywords if k.arg == "world_size"), None)
    return isinstance(size, ast.Constant) and size.value == 1


def _fragment(interpreter: Interpreter, source: Source, code: Code) -> Program:
    """Follow a function or each method of a class, with unknown arguments."""
    interpreter.steps, interpreter.departures, interpreter.started = [], [], False
    interpreter.frame.env, interpreter.run = dict(interpreter.frame.env), 0
    call = ast.Call(ast.Name(code.node.name), [], [])  # type: ignore[union-attr]
    ast.copy_location(call, code.node)
    root = Step(-1, call, source, "", "", "", Value(), (), {}, (), (), (), ())
    value = interpreter.follow(code, root, (), {}, known=False)
    if isinstance(code.node, ast.ClassDef):
        thing = next(iter(value.things))
        for node in code.node.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if node in interpreter.times:
                    continue
                interpreter.run += 1
                method = interpreter.method_of(thing, node.name)
                if method is not None:
                    interpreter.follow(method, root, (), {}, known=False)
    return _program(interpreter, source, entry=False)


def _is_used(node: Definition, interpreter: Interpreter) -> bool:
    """Return whether a class has an instance; its unused methods are then not followed."""
    if not isinstance(node, ast.ClassDef):
        return False
    return any(inner in interpreter.times for inner in node.body)


def _callers_first(source: Source) -> list[Definition]:
    """Return the file's functions and classes; those that no other one mentions come first."""
    nodes = [node for node in source.tree.body if isinstance(node, Definition)]
    defined = {node.name for node in nodes}
    mentioned: Counter[str] = Counter()
    for node in nodes:
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        mentioned.update(names & defined - {node.name})
    return sorted(nodes, key=lambda node: node.name in mentioned)
