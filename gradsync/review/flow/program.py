"""A program: the calls of a script in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from gradsync.review.flow.project import Source
from gradsync.review.flow.values import Departure, Step, Thing


@dataclass(eq=False)
class Program:
    """The calls from one entry point: the script itself, or a function that it never calls."""

    source: Source
    steps: list[Step]
    entry: bool  # begins where Python begins, not in an unused function
    sources: list[Source]  # of all files that were read for it
    departures: list[Departure] = field(default_factory=list)

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
        """Whether it starts a process group and trains, so no important part is elsewhere."""
        return bool(self.starts and (self.backwards or self.wrappers))

    @property
    def data_parallel(self) -> bool:
        """Whether it is a complete program in which all ranks train one model."""
        return self.whole and bool(self.wrappers or self.averages_by_hand)
