"""Schedules of pipelines: the order and times of the operations of a pipeline's stages."""

from __future__ import annotations

from dataclasses import dataclass

Operation = tuple[str, int]  # "F" or "B" (forward, backward), and the microbatch


@dataclass(frozen=True)
class Schedule:
    """The order of each stage's operations, and their duration."""

    orders: list[list[Operation]]  # by stage
    ticks: int = 1  # for a forward; a backward takes twice as long

    def length(self, kind: str) -> int:
        """Return the ticks of a forward ("F") or a backward ("B")."""
        return self.ticks if kind == "F" else 2 * self.ticks

    def begins(self) -> dict[tuple[int, str, int], int]:
        """Return the tick in which each operation begins.

        An operation begins after the previous one of its stage, and after those that it needs.
        """
        begins: dict[tuple[int, str, int], int] = {}
        free = [0] * len(self.orders)
        left = [list(order) for order in self.orders]
        while any(left):
            for stage, order in enumerate(left):
                while order:
                    kind, number = order[0]
                    needed = _needs(stage, kind, number, len(left))
                    if any(operation not in begins for operation in needed):
                        break
                    ready = [begins[operation] + self.length(operation[1]) for operation in needed]
                    begins[stage, kind, number] = max([free[stage], *ready])
                    free[stage] = begins[stage, kind, number] + self.length(kind)
                    order.pop(0)
        return begins


def gpipe(stages: int, microbatches: int, ticks: int = 1) -> Schedule:
    """Return GPipe's schedule: on each stage all forwards, then all backwards."""
    order = [(kind, number) for kind in "FB" for number in range(microbatches)]
    return Schedule([order] * stages, ticks)


def one_forward_one_backward(stages: int, microbatches: int) -> Schedule:
    """Return 1F1B's schedule: each stage starts backward as early as possible."""
    orders = []
    for stage in range(stages):
        early = min(stages - stage, microbatches)
        order = [("F", number) for number in range(early)]
        for number in range(microbatches):
            order.append(("B", number))
            if early + number < microbatches:
                order.append(("F", early + number))
        orders.append(order)
    return Schedule(orders)


def _needs(stage: int, kind: str, number: int, stages: int) -> list[tuple[int, str, int]]:
    if kind == "F":
        return [(stage - 1, "F", number)] if stage else []
    after = [(stage + 1, "B", number)] if stage + 1 < stages else []
    return [(stage, "F", number), *after]
