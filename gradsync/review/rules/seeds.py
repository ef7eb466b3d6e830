"""Seeds: models must be the same on every rank, and augmentations must differ."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradsync.review.findings import Hit, at, data_parallel, rule, whole
from gradsync.review.flow.program import Program
from gradsync.review.flow.values import MAYBE_RANK, RANK, UNSEEDED, Step, Value, mixed
from gradsync.review.queries import (
    has_distributed_sampler,
    mentions,
    surely_on_every_rank,
    training_loops,
)

_SEEDS = ("torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all")
_ON_THE_CPU = ("torch.manual_seed", "random.seed", "numpy.random.seed")
_RANDOM = re.compile(
    r"^torchvision\.transforms\.(v2\.)?(Random\w+|ColorJitter|AutoAugment|RandAugment|AugMix|"
    r"TrivialAugmentWide|ElasticTransform|GaussianNoise)$|^torch\.nn\.(Alpha)?Dropout[123]?d?$"
)
_NOISE = ("rand", "randn", "rand_like", "randn_like", "randint", "normal", "bernoulli")


_MADE_EQUAL = (
    r"seed\w*\(|load_state_dict|torch\.load|pretrained|broadcast|"
    r"all_reduce\(\w*(param|p)(\.data)?[,)]"
)
_SPLITS = {
    "torch.utils.data.random_split": (2, "generator"),
    "torch.utils.data.dataset.random_split": (2, "generator"),
    "sklearn.model_selection.train_test_split": (99, "random_state"),
}


def _by_rank(step: Step) -> bool:
    return any(value.deep_tags() & {RANK, MAYBE_RANK} for value in step.args)


@rule(
    "DDP032",
    "The ranks begin with different models",
    topic="all ranks begin with the same model",
    remedy="Broadcast rank 0's parameters and buffers before training.",
    applies=data_parallel,
)
def different_models(program: Program) -> Iterator[Hit]:
    """Find models that are made after a seed that differs by rank, and are never made equal."""
    for step in program.methods("apply"):
        named = step.args and "init" in ast.unparse(step.node.args[0])
        if named and step.receiver.surely("ddp") and not mentions(program, _MADE_EQUAL):
            yield at(
                step,
                "The wrapper has made the ranks' models equal, but without a seed, each rank then "
                "draws other parameters here.",
                "Initialise the model before wrapping it.",
            )
            return
    broadcasts = any("broadcast" in step.collective for step in program.steps)
    if program.wrappers or not program.averages_by_hand or broadcasts:
        return
    seeds = [step for step in program.calls(*_SEEDS) if _by_rank(step)]
    models = [thing.step for thing in program.things("model") if thing.step]
    if models and not mentions(program, _MADE_EQUAL):
        yield at(
            models[0],
            "Without a seed, each rank begins with other random parameters. Averaged gradients "
            "don't make different models equal.",
        )
    for seed in seeds[:1]:
        later = [model for model in models if program.before(seed, model)]
        again = any(program.before(seed, s) and not _by_rank(s) for s in program.calls(*_SEEDS))
        if later and not again:
            yield at(
                seed,
                f"This seed differs by rank, and the model of line {later[0].node.lineno} is made "
                "after it. Averaged gradients don't make different models equal.",
            )


@rule(
    "DDP033",
    "All ranks draw the same augmentations",
    topic="augmentations differ between ranks",
    remedy="After the model is made, seed with the rank: `torch.manual_seed(seed + rank)`.",
    applies=data_parallel,
    kind="possible mistake",
)
def same_augmentations(program: Program) -> Iterator[Hit]:
    """Find seeds that are the same on every rank, though samples are changed at random."""
    seeds = list(program.calls("torch.manual_seed"))
    if not seeds or any(_by_rank(step) for step in seeds) or seeds[0].on_some_ranks:
        return
    random = next((step for step in program.steps if _is_random(program, step)), None)
    for loader, _ in training_loops(program):
        step = loader.step
        if random is None or step is None or not has_distributed_sampler(step):
            continue
        if {"worker_init_fn", "generator"} & set(step.kwargs) or step.spread:
            continue
        yield at(
            seeds[0],
            "Every rank uses this seed, so all ranks draw the same random numbers for the "
            f"{_kind_of(random)} of line {random.node.lineno}.",
        )
        return


def _kind_of(step: Step) -> str:
    if step.path.startswith("torchvision."):
        return "transforms"
    return "dropout" if "Dropout" in step.path else "noise"


def _is_random(program: Program, step: Step) -> bool:
    """Return whether this is a random transform, a dropout layer, or noise in the training loop."""
    trains = {loop for backward in program.backwards for loop in backward.loops}
    noise = step.path.startswith("torch.") and step.path.rpartition(".")[2] in _NOISE
    return bool(_RANDOM.match(step.path)) or (noise and bool(trains & set(step.loops)))


@rule(
    "DDP035",
    "Each rank splits the data differently",
    topic="each rank has its own samples",
    remedy="Pass `generator=torch.Generator().manual_seed(0)`, or seed all ranks alike before.",
    applies=whole,
)
def split_differently(program: Program) -> Iterator[Hit]:
    """Find random splits without a seed, which differ between processes."""
    for step in program.steps:
        position, name = _SPLITS.get(step.path, (0, ""))
        if not name or step.spread or not surely_on_every_rank(step) or _seeded(program, step):
            continue
        if step.argument(position, name) in (None, Value(const=None)):
            yield at(
                step,
                "Without a common seed, each process draws another split: samples that one rank "
                "validates on are training samples of another one.",
            )
            return
    for loader in program.things("loader"):
        dataset = loader.step.argument(0, "dataset") if loader.step else None
        made = [t.step for t in dataset.deep() if t.step] if dataset else []
        values = [arg for step in made for arg in step.args] + ([dataset] if dataset else [])
        unseeded = any(UNSEEDED in value.deep_tags() for value in values)
        if unseeded and loader.step and not _seeded(program, loader.step):
            yield at(
                loader.step,
                "Without a common seed, each process has chosen other samples at random: samples "
                "that one rank validates on are training samples of another one.",
                "Shuffle with the same seed on all ranks: `random.Random(0).shuffle(indices)`.",
            )
            return


def _seeded(program: Program, step: Step) -> bool:
    """Return whether all ranks may have the same seed at a call."""
    seeds = [seed for seed in program.calls(*_ON_THE_CPU) if program.before(seed, step)]
    differ = seeds and all(RANK in mixed([*seed.args]).tags for seed in seeds)
    return mentions(program, r"seed\w*\(") and not differ
