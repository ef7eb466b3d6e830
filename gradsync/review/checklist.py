"""The checklist: the practices that a program breaks, those that it follows, and the other ones.

A practice counts as followed only if its evidence was seen in the program and no rule found a
mistake. Without evidence it is not checked, even if no rule found a mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gradsync.review.findings import Finding, Rule
from gradsync.review.flow.program import Program
from gradsync.review.flow.values import DATA, LOCAL, RANK, WORLD, Step, Value
from gradsync.review.queries import (
    all_ranks_join,
    has_distributed_sampler,
    is_wrapped,
    training_loops,
)


@dataclass(frozen=True, slots=True)
class Line:
    """One practice, and whether the files follow it."""

    topic: str  # "each epoch has a new order"
    state: Literal["broken", "followed", "not checked"]
    codes: tuple[str, ...] = ()  # of the findings


def checklist(
    findings: Iterable[Finding], followed: Iterable[str], rules: Iterable[Rule]
) -> Sequence[Line]:
    """Return a line for each topic of the rules, in the order of their codes."""
    broken: dict[str, set[str]] = {}
    topics = {rule.code: rule.topic for rule in rules}
    for finding in findings:
        broken.setdefault(topics[finding.code], set()).add(finding.code)
    seen = set(followed)
    return [
        Line(topic, "broken", tuple(sorted(broken[topic])))
        if topic in broken
        else Line(topic, "followed" if topic in seen else "not checked")
        for topic in dict.fromkeys(topics.values())
    ]


def _by_rank(step: Step) -> bool:
    return any(RANK in guard.value.tags for guard in step.guards)


def _loaders(program: Program) -> list[Step]:
    """Return the calls that make the loaders with a share for each rank."""
    made = [loader.step for loader in program.things("loader")]
    return [step for step in made if step is not None and has_distributed_sampler(step)]


def _saves_on_one_rank(program: Program) -> bool:
    saves = list(program.calls("torch.save"))
    return bool(saves) and all(map(_by_rank, saves))


def _saves_the_model(program: Program) -> bool:
    states = [t for step in program.calls("torch.save") for arg in step.args for t in arg.deep()]
    return any(t.kind == "state" and t.inner.surely("model") for t in states)


def _wraps(program: Program) -> bool:
    return bool(program.wrappers or program.sharded)


def _updates_on_all_ranks(program: Program) -> bool:
    steps = [s for s in program.methods("step") if s.receiver.of_kind("optimizer")]
    return _wraps(program) and bool(steps) and not any(step.on_some_ranks for step in steps)


def _takes_turns(program: Program) -> bool:
    sends = program.calls("torch.distributed.send", "torch.distributed.isend")
    return any(_by_rank(step) or step.path.endswith("isend") for step in sends)


EVIDENCE: Mapping[str, Callable[[Program], bool]] = {
    "process group before loaders": lambda p: any(
        p.before(start, step) for start in p.starts for step in _loaders(p)
    ),
    "each rank has its own samples": lambda p: any(
        x.step is not None and has_distributed_sampler(x.step) for x, _ in training_loops(p)
    ),
    "each epoch has a new order": lambda p: any(
        step.receiver.of_kind("sampler", "loader") for step in p.methods("set_epoch")
    ),
    "each loader has the batch size of one rank": lambda p: any(
        WORLD in (step.argument(1, "batch_size") or Value()).tags for step in _loaders(p)
    ),
    "one rank writes files": _saves_on_one_rank,
    "checkpoints fit the model": _saves_the_model,
    "one rank logs": lambda p: any(
        map(_by_rank, p.calls("builtins.print", "wandb.init", "SummaryWriter"))
    ),
    "all ranks call each collective": lambda p: any(
        all_ranks_join(step) and not step.on_some_ranks for step in p.steps
    ),
    "each rank waits for asynchronous work": lambda p: any(
        step.receiver.of_kind("work") for step in p.methods("wait")
    ),
    "the process group is destroyed": lambda p: any(p.calls("destroy_process_group")),
    "the launcher decides ranks, port and device": lambda p: any(
        arg.tags >= {RANK, LOCAL}
        for step in p.calls("torch.cuda.set_device", "torch.device")
        for arg in step.args
    ),
    "the model is ready before it is wrapped": _wraps,
    "the model is ready before its optimizer": lambda p: _wraps(p) and bool(p.things("optimizer")),
    "BatchNorm uses the batch of all ranks": lambda p: any(p.calls("convert_sync_batchnorm")),
    "gradients are averaged": lambda p: (
        bool(p.averages_by_hand) or any(map(is_wrapped, p.backwards))
    ),
    "all ranks make the same updates": _updates_on_all_ranks,
    "each send meets a receive": _takes_turns,
    "each step communicates once": lambda p: bool(p.things("no_sync")),
    "metrics count each sample once": lambda p: any(
        DATA in step.args[0].deep_tags()
        for step in p.steps
        if step.collective == "all_reduce" and step.args
    ),
    "all ranks begin with the same model": lambda p: (
        _wraps(p)
        or any(
            step.collective == "broadcast" and step.args and step.args[0].of_kind("params")
            for step in p.steps
        )
    ),
    "augmentations differ between ranks": lambda p: any(
        RANK in arg.tags
        for step in p.calls("torch.manual_seed", "numpy.random.seed", "random.seed")
        for arg in step.args
    ),
}
