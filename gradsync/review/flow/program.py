"""A program: the calls of a script in the order in which they run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from gradsync.review.flow.project import Source
from gradsync.review.flow.values import MAYBE_RANK, RANK, Thing, Value

COLLECTIVES = frozenset(
    "all_reduce broadcast reduce all_gather all_gather_into_tensor gather scatter reduce_scatter "
    "reduce_scatter_tensor all_to_all all_to_all_single barrier monitored_barrier "
    "broadcast_object_list all_gather_object gather_object scatter_object_list".split()
)
DIST = "torch.distributed."


@dataclass(frozen=True, eq=False)
class Guard:
    """A condition under which a call runs."""

    node: ast.AST  # the `if`, `while` or `for`
    value: Value  # of its test
    positive: bool  # whether the test must be true
    early: bool = False  # the others have left before, by `return`, `continue` or `break`


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop around a call."""

    node: ast.For | ast.AsyncFor | ast.While
    over: Value


@dataclass(eq=False)
class Step:
    """One call, in one place of the program."""

    index: int
    node: ast.Call
    source: Source
    function: str  # the name of the function that has the call; "" for the module
    path: str  # "torch.distributed.all_reduce"; "" if it is no imported name
    method: str  # "backward" of `loss.backward()`; "" if there is no receiver
    receiver: Value
    args: tuple[Value, ...]
    kwargs: dict[str, Value]
    guards: tuple[Guard, ...]
    loops: tuple[Loop, ...]
    contexts: tuple[Value, ...]
    stack: tuple[ast.AST, ...]  # the calls that lead to it, outermost first
    run: int = 0  # steps of different runs have no order, but run 0 comes first
    evaluating: bool = False  # without gradients
    in_try: bool = False
    discarded: bool = False  # the result is not used
    result: Value = field(default_factory=Value)

    def argument(self, position: int, name: str) -> Value | None:
        """Return an argument by its position or its name; None if it is not passed."""
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[position] if position < len(self.args) else None

    @property
    def spread(self) -> bool:
        """Whether some of its arguments are hidden in `*args` or `**kwargs`."""
        starred = any(isinstance(arg, ast.Starred) for arg in self.node.args)
        return starred or any(keyword.arg is None for keyword in self.node.keywords)

    @property
    def on_some_ranks(self) -> bool:
        """Whether a condition that may depend on the rank decides if it runs."""
        values = [*(guard.value for guard in self.guards), *self.contexts]
        return any(value.tags & {RANK, MAYBE_RANK} for value in values)

    @property
    def collective(self) -> str:
        """The name of the collective that it calls; "" if it calls none."""
        name = self.path.rpartition(".")[2]
        return name if self.path.startswith(DIST) and name in COLLECTIVES else ""


@dataclass(eq=False)
class Program:
    """What runs from one entry point: a script's, or a function's that nothing here calls."""

    source: Source
    steps: list[Step]
    entry: bool  # begins where Python begins, not in a function that nobody calls
    sources: list[Source]  # of all files that were read for it

    def calls(self, *paths: str) -> Iterator[Step]:
        """Yield the calls of imported names: whole paths, or ends such as "optim.SGD"."""
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
        """Return whether `one` surely runs before `other`, where both run."""
        if one.run != other.run:
            return one.run == 0
        return one.index < other.index

    @cached_property
    def starts(self) -> list[Step]:
        """The calls of `init_process_group`."""
        return list(self.calls("torch.distributed.init_process_group"))

    @cached_property
    def backwards(self) -> list[Step]:
        """The backward passes."""
        return [step for step in self.methods("backward") if not step.path]

    @cached_property
    def wrappers(self) -> list[Thing]:
        """The models in DistributedDataParallel or FSDP."""
        return self.things("ddp", "fsdp")

    @cached_property
    def averages_by_hand(self) -> list[Step]:
        """The all-reduces of gradients that the script itself calls."""
        return [
            step
            for step in self.steps
            if step.collective == "all_reduce" and step.args and "grad" in step.args[0].tags
        ]

    @property
    def whole(self) -> bool:
        """Whether it starts a process group and trains: nothing important happens elsewhere."""
        return bool(self.starts and (self.backwards or self.wrappers))

    @property
    def data_parallel(self) -> bool:
        """Whether it is whole, and all ranks train one model."""
        return self.whole and bool(self.wrappers or self.averages_by_hand)
