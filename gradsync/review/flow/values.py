"""The possible values of expressions, and the calls that are recorded.

A `Value` says what is known about the result of an expression: the objects that it may be
(`things`), its constant, its name in a package (`path`), its parts, and how it differs between
ranks (`tags`). The tags are sets of facts, ordered by what a rule may conclude from them:

    equal on all ranks    no tag, or WORLD: it depends at most on the number of ranks. Constants,
                          configuration, results of an all-reduce or a broadcast.
    differs by rank       RANK: computed from the rank, also where a condition on the rank, or a
                          reduce to one rank, decides. LOCAL: it is the rank on this machine.
                          GLOBAL: it is the rank among all ranks itself, not computed from it.
                          SPAWNED: the number that `mp.spawn` passes, not computed from it.
    differs by samples    OWN: computed from samples that certainly only this rank has, such as
                          those of a loader with a DistributedSampler. EVAL: as OWN, by a model
                          without gradients or in evaluation mode. SHARE: every n-th sample.
    differs by process    CLOCK: the time at which this rank asks for it. UNSEEDED: drawn at random.
                          REDUCED: a sum that `reduce` leaves on one rank only; also RANK.
    unknown               MAYBE_RANK: may depend on the rank. DATA: computed from samples that may
                          be this rank's own.

SAME: samples that a program takes from its data at a position without a rank. MEAN and UNEVEN say
how a number was divided, CUT that a collective computed it, through which no gradient flows. GRAD,
NUMBERED, ELEMENT, UNORDERED, AGAIN and TOO_EARLY say nothing about ranks.
Three operations combine values:

- `mixed`, for an expression: the result has the tags of all operands.
- `either`, for two branches: a certain tag of only one side becomes uncertain (RANK becomes
  MAYBE_RANK; OWN, DATA and the kind of rank disappear), unless the other side is a constant.
  GLOBAL and SPAWNED stay if each side has one of them.
- `Value.cleared`, for a collective: its result is equal on all ranks, and has none of these tags.

A condition adds its own tags: a name that is assigned under a condition on the rank depends on the
rank afterwards (`frame.merged`). Conditions that hold on every rank because of other conditions do
not count (`conditions.relevant`). The length of a collection does not depend on its elements. A
rule that claims that ranks differ needs RANK, OWN or CLOCK; a rule that claims that all ranks do
the same needs a value with neither RANK nor MAYBE_RANK.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace

from gradsync.review.flow.project import Source

UNKNOWN = object()  # the `const` of a value that is not a known constant
RANK = "rank"  # differs between ranks
MAYBE_RANK = "rank?"  # may differ: a function that we can't read got the rank as an argument
GLOBAL = "global"  # the rank among all ranks, as the launcher or the process group gives it
LOCAL = "local"  # the rank on this machine, not among all ranks
SPAWNED = "spawned"  # the number that `mp.spawn` gives to a process: a rank, on one machine
WORLD = "world"  # depends on the number of ranks: the same on every rank
DATA = "data"  # computed from samples, which may be this rank's own
OWN = "own"  # computed from samples that certainly only this rank has
MEAN = "mean"  # divided by a number of this rank
UNEVEN = "uneven"  # divided by a number that depends on the contents of this rank's samples
EVAL = "eval"  # computed by a model that is evaluated, from samples that only this rank has
SHARE = "share"  # every n-th sample on n ranks, without padding: some ranks may have one more
CLOCK = "clock"  # a time, which each rank reads for itself
UNSEEDED = "unseeded"  # drawn at random, so each process has its own unless there is a seed
REDUCED = "reduced"  # the result of `reduce`, which only one rank has
CUT = "cut"  # computed by a collective, through which no gradient flows
GRAD = "grad"  # a gradient
NUMBERED = "numbered"  # a result of `enumerate`
ELEMENT = "element"  # of a collection, or an empty one: not this rank, whatever its name is
SAME = "same"  # the samples at a position that does not depend on the rank
UNORDERED = "unordered"  # a set, whose order differs between processes
AGAIN = "again"  # a generator that begins again after the last element
TOO_EARLY = "too early"  # `is_initialized()`, called before there was a process group
_ITSELF = frozenset({GLOBAL, SPAWNED})  # a rank, not computed from it
OWNS = frozenset({OWN, CLOCK})  # certainly differ between ranks
OF_ONE_RANK = frozenset({
    RANK, MAYBE_RANK, LOCAL, GLOBAL, SPAWNED, DATA, OWN, EVAL, MEAN, UNEVEN, SHARE, CLOCK,
    UNSEEDED, REDUCED,
})  # fmt: skip
COLLECTIVES = frozenset({
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather",
    "scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single",
    "barrier", "monitored_barrier", "broadcast_object_list", "all_gather_object",
    "gather_object", "scatter_object_list",
})  # fmt: skip
_WITHOUT_GRADIENT = ("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter")
DIST = "torch.distributed."
_NUMBERS = itertools.count()  # of things


class Thing:
    """An object that the script makes: a model, a loader, an instance of one of its classes.

    Args:
        kind: "model", "ddp", "fsdp", "compiled", "optimizer", "params", "state", "loader",
            "sampler", "dataset", "work", "output", "scaler", "no_sync", "instance" and so on.
        step: the call that made it.
        inner: the value from which it was made, such as the model of a wrapper.
    """

    def __init__(self, kind: str, step: Step | None, inner: Value | None = None) -> None:
        self.kind = kind
        self.step = step
        self.inner = inner or Value()
        self.attrs: dict[str, Value] = {}
        self.of_class: Code | None = None
        self.evaluates = False  # a model in evaluation mode
        self.escaped = False  # it was passed to a function that we can't read
        self.number = next(_NUMBERS)

    def __hash__(self) -> int:
        """Return a number that gives sets of things the same order in each review."""
        return self.number


@dataclass(frozen=True, eq=False)
class Code:
    """A function, method, lambda or class of the script."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
    source: Source
    scope: MutableMapping[str, Value]  # the names of the functions around it
    module: MutableMapping[str, Value]  # the names of its file
    receiver: Value | None = None  # of a method
    of_class: Code | None = None  # of a method
    bases: tuple[Value, ...] = ()  # of a class

    @property
    def is_class(self) -> bool:
        """Whether a call of it makes an instance."""
        return isinstance(self.node, ast.ClassDef)


@dataclass(frozen=True)
class Value:
    """Everything that is known about a value; if no field is set, nothing is known."""

    things: frozenset[Thing] = frozenset()
    tags: frozenset[str] = frozenset()
    const: object = UNKNOWN
    path: str = ""  # of an imported name: "torch.distributed.all_reduce"
    parts: tuple[Value, ...] = field(default=(), compare=False)  # of a tuple, list or dict
    keys: tuple[object, ...] = field(default=(), compare=False)  # of a dict, one for each part
    code: Code | None = None
    maybe: bool = False  # it may also be something else

    @property
    def blank(self) -> bool:
        """Whether nothing is known about it."""
        known = self.things or self.tags or self.path or self.parts or self.code
        return not known and self.const is UNKNOWN

    def tagged(self, *tags: str) -> Value:
        return self if self.tags.issuperset(tags) else replace(self, tags=self.tags | set(tags))

    def without(self, *tags: str) -> Value:
        return replace(self, tags=self.tags - set(tags))

    def of_kind(self, *kinds: str) -> list[Thing]:
        """Return the things of these kinds that it may be, in order of their creation."""
        found = [thing for thing in self.things if thing.kind in kinds]
        return sorted(found, key=lambda thing: thing.step.index if thing.step else -1)

    def surely(self, *kinds: str) -> bool:
        """Return whether it can only be a thing of these kinds."""
        return bool(self.things) and not self.maybe and all(t.kind in kinds for t in self.things)

    def kinds(self) -> set[str]:
        """Return the kinds of the things that it may be."""
        return {thing.kind for thing in self.things}

    def item(self, key: object) -> Value | None:
        """Return the part of a list or a dict at a position or a key, if it is known."""
        if not self.keys and isinstance(key, int) and -len(self.parts) <= key < len(self.parts):
            return self.parts[key]
        known = key is not UNKNOWN and key in self.keys
        return self.parts[self.keys.index(key)] if known else None

    def deep(self) -> list[Thing]:
        """Return its things and the things of its parts."""
        found = list(self.things)
        for part in self.parts:
            found += part.deep()
        return found

    def cleared(self, *tags: str) -> Value:
        """Return the value without these tags, and with parts without them."""
        parts = tuple(part.cleared(*tags) for part in self.parts)
        return replace(self, tags=self.tags - set(tags), parts=parts)

    def deep_tags(self) -> frozenset[str]:
        """Return its tags and the tags of its parts."""
        return self.tags.union(*(part.deep_tags() for part in self.parts))


@dataclass(frozen=True, eq=False)
class Guard:
    """A condition under which a call runs."""

    node: ast.AST  # the `if`, `while` or `for`
    value: Value  # of its test
    positive: bool  # whether the test must be true
    early: bool = False  # the other ranks have already left, by `return`, `continue` or `break`

    @property
    def test(self) -> ast.expr | None:
        """The expression that decides, if there is one."""
        return getattr(self.node, "test", None)


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop around a call."""

    node: ast.For | ast.AsyncFor | ast.While
    over: Value


@dataclass(frozen=True, eq=False)
class Departure:
    """A condition under which a rank leaves loops, by `break`, `return` or the end of a `while`."""

    node: ast.AST  # the condition
    statement: ast.AST  # the `if` or `while` that has it
    source: Source
    function: str
    value: Value
    loops: tuple[Loop, ...]


Handler = tuple[ast.ExceptHandler, int]  # of a `try`, and the number of loops around it


@dataclass(eq=False)
class Step:
    """One call, in one place of the program."""

    index: int
    node: ast.Call
    source: Source
    function: str  # the name of the function that contains the call; "" for the module
    path: str  # "torch.distributed.all_reduce"; "" if it is not an imported name
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
    handlers: tuple[Handler, ...] = ()  # of the `try` statements around it
    discarded: bool = False  # the result is not used
    unread: bool = False  # it calls a function that we can't read
    result: Value = field(default_factory=Value)

    def argument(self, position: int, name: str) -> Value | None:
        """Return an argument by its position or its name; None if it is not passed."""
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[position] if position < len(self.args) else None

    @property
    def values(self) -> list[Value]:
        """All of its arguments."""
        return [*self.args, *self.kwargs.values()]

    @property
    def spread(self) -> bool:
        """Whether some of its arguments are hidden in `*args` or `**kwargs`."""
        starred = any(isinstance(arg, ast.Starred) for arg in self.node.args)
        return starred or any(keyword.arg is None for keyword in self.node.keywords)

    @property
    def on_some_ranks(self) -> bool:
        """Whether it runs under a condition that may depend on the rank."""
        values = [*(guard.value for guard in self.guards), *self.contexts]
        return any(value.tags & {RANK, MAYBE_RANK} for value in values)

    @property
    def cuts_gradient(self) -> bool:
        """Whether it computes a value from the outputs of models, unknown to autograd."""
        outputs = any(arg.of_kind("output") for arg in self.args) and ".nn." not in self.path
        return outputs and self.collective in _WITHOUT_GRADIENT and not self.evaluating

    @property
    def collective(self) -> str:
        """The name of the collective that it calls; "" if it calls none."""
        name = self.path.rpartition(".")[2]
        return name if self.path.startswith(DIST) and name in COLLECTIVES else ""


def either(one: Value, other: Value) -> Value:
    """Return a value that may be either of these two."""
    if one is other or (one == other and not one.parts and not other.parts):
        return one
    same_const = one.const is other.const or (
        type(one.const) is type(other.const) and one.const == other.const
    )
    return Value(
        things=one.things | other.things,
        tags=_tags_of_either(one, other),
        const=one.const if same_const else UNKNOWN,
        path=_path_of_either(one.path, other.path),
        parts=_parts_of_either(one, other),
        keys=one.keys if len(one.parts) >= len(other.parts) else other.keys,
        code=one.code or other.code,
        maybe=one.maybe or other.maybe or bool(one.things) != bool(other.things),
    )


def _path_of_either(one: str, other: str) -> str:
    """Return the path of both; of two classes of samplers, take the one for several ranks."""
    if one == other:
        return one
    distributed = [path for path in (one, other) if path.endswith("DistributedSampler")]
    return distributed[0] if distributed and one and other else ""


def _parts_of_either(one: Value, other: Value) -> tuple[Value, ...]:
    """Return the parts of either; of two tuples such as `0, 1` and `rank, size`, part by part."""
    if len(one.parts) == len(other.parts) and one.keys == other.keys:
        return tuple(either(a, b) for a, b in zip(one.parts, other.parts, strict=True))
    return one.parts if len(one.parts) >= len(other.parts) else other.parts


def _tags_of_either(one: Value, other: Value) -> frozenset[str]:
    """Return the tags of a value that may be either of these two.

    A tag of only one of them stays certain if the other one is a constant, such as a default.
    """
    tags = one.tags | other.tags
    for value, second in ((one, other), (other, one)):
        if second.const is UNKNOWN:
            unsure = value.tags - second.tags
            if RANK in unsure:
                tags = tags - {RANK} | {MAYBE_RANK}
            tags -= unsure & {DATA, OWN, EVAL, CLOCK, LOCAL, GLOBAL, SPAWNED}
    if _ITSELF & one.tags and _ITSELF & other.tags:
        tags |= _ITSELF & (one.tags | other.tags)
    return tags


def uncertain(value: Value) -> Value:
    """Return the value; if it depends on the rank, mark this as uncertain."""
    tags = value.tags - {RANK, LOCAL, GLOBAL} | {MAYBE_RANK} if RANK in value.tags else value.tags
    return replace(value, tags=tags)


def mixed(values: list[Value]) -> Value:
    """Return a value that is computed from these values: it has their tags."""
    tags: frozenset[str] = frozenset().union(*(value.deep_tags() for value in values))
    outputs = frozenset(t for value in values for t in value.deep() if t.kind == "output")
    return Value(things=outputs, tags=tags - {ELEMENT})


def strided(found: Value, first: Value, stride: Value) -> Value:
    """Return the elements from `first` in steps of `stride`, which may be a rank's share."""
    if RANK in first.tags and WORLD in stride.tags:
        return found.without(RANK, MAYBE_RANK).tagged(SHARE)
    return found


def escape(values: list[Value]) -> None:
    """Mark these values, and all values inside them, as passed to code that we can't read."""
    pending = [thing for value in values for thing in value.deep()]
    while pending:
        thing = pending.pop()
        if thing.escaped:
            continue
        thing.escaped = True
        inside = [thing.inner, *thing.attrs.values()]
        if thing.kind == "loader" and thing.step:
            inside += thing.step.values
        pending += [part for value in inside for part in value.deep()]
