"""The results of PyTorch's functions and methods, as far as the rules need them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from gradsync.review.flow.values import (
    AGAIN,
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
    NUMBERED,
    OWN,
    RANK,
    SHARE,
    TOO_EARLY,
    UNKNOWN,
    UNORDERED,
    UNSEEDED,
    WORLD,
    Step,
    Thing,
    Value,
    either,
    mixed,
    strided,
    uncertain,
)

MODELS = ("model", "ddp", "fsdp", "compiled")
_TAGS = {
    "torch.distributed.get_rank": (RANK, GLOBAL),
    "torch.distributed.get_node_local_rank": (RANK, LOCAL),
    "torch.distributed.get_group_rank": (RANK,),
    "torch.cuda.current_device": (RANK, LOCAL),
    "torch.distributed.get_world_size": (WORLD,),
    "torch.distributed.is_available": (WORLD,),
    "torch.distributed.is_torchelastic_launched": (WORLD,),
    "torch.cuda.device_count": (WORLD,),
    "tempfile.mkdtemp": (MAYBE_RANK,),
    "tempfile.TemporaryDirectory": (MAYBE_RANK,),
    "tempfile.NamedTemporaryFile": (MAYBE_RANK,),
    "os.getpid": (MAYBE_RANK,),
    "uuid.uuid4": (MAYBE_RANK,),
    "builtins.set": (UNORDERED,),
} | dict.fromkeys(
    ("time.time", "time.monotonic", "time.perf_counter", "timeit.default_timer",
     "datetime.datetime.now", "datetime.datetime.utcnow"), (CLOCK,),
)  # fmt: skip
_DRAWS = ("random.sample", "numpy.random.permutation", "numpy.random.choice", "torch.randperm")
_RANDOM = re.compile(r"^torch\.rand(n|int)?$|^(numpy\.)?random\.(rand\w*|choices?|uniform|normal)$")
_LIBRARY_MODEL = re.compile(
    r"^(timm\.(create_model|models\.)|torch\.hub\.load$|segmentation_models_pytorch\.[A-Z]|"
    r"monai\.networks\.nets\.|efficientnet_pytorch\.|transformers\.(\w*(Model|For[A-Z])\w*\.from_|"
    r"\w+(LMHeadModel|Model|For[A-Z]\w+)$))"
)
_NOT_DIFFERENTIABLE = ("detach", "item", "tolist", "numpy", "argmax", "eq", "size")
_SAME_VALUE = ("item", "tolist", "numpy", "detach", "clone", "float", "double", "int", "long")
_TAGS_OF_METHODS = {
    "get_rank": (RANK,),  # of a mesh
    "get_local_rank": (MAYBE_RANK,),  # along one dimension of a mesh
    "get_coordinate": (MAYBE_RANK,),
} | dict.fromkeys(("size", "dim", "numel", "device", "get_device"), ())
_KIND_OF_CALL = {
    "DistributedDataParallel": "ddp", "ShardedDataParallel": "ddp",  # of fairscale
    "FullyShardedDataParallel": "fsdp", "DataLoader": "loader", "DistributedSampler": "sampler",
    "ElasticDistributedSampler": "sampler", "GradScaler": "scaler", "ShardedGradScaler": "scaler",
    "Generator": "generator", "Subset": "dataset", "random_split": "dataset",
    "TensorDataset": "dataset",
}  # fmt: skip
_KIND_OF_PATH = {"io.BytesIO": "buffer", "torch.load": "checkpoint"}
_SAMPLERS = ("RandomSampler", "SequentialSampler", "WeightedRandomSampler", "BatchSampler")
MOVES = ("to", "cuda", "cpu", "xpu")
_PLACES = ("device", "map_location", "dtype", "pin_memory")  # these don't change the values
_SAME_MODEL = "to cuda cpu half float double bfloat16 train eval requires_grad_ apply to_empty xpu"

# Names of packages that scripts import with `*`.
_STARRED = {
    "torchvision.datasets": re.compile(r"^(CIFAR|\w*MNIST|Image|SVHN|STL|Celeb|Coco|VOC|Caltech)"),
    "torchvision.transforms": re.compile("^(Compose|Random|To|Normalize|Resize|CenterCrop|Color)"),
    "torch.nn": re.compile("^(Module|Sequential|Linear|Conv|BatchNorm|ReLU|Dropout|.*Loss$)"),
    "torch.utils.data": re.compile("Dataset$|DataLoader|random_split|Sampler$|^Subset$"),
    "torch.distributed": re.compile("^(init_|get_|is_init|all_|barrier|broadcast|reduce|destroy)"),
}
WRAPPERS = (
    "DistributedDataParallel", "ShardedDataParallel", "FullyShardedDataParallel", "fully_shard",
)  # fmt: skip
# Methods of classes of PyTorch and Python: none of them calls a collective in secret.
METHODS = {
    "item", "numpy", "tolist", "detach", "clone", "backward", "step", "zero_grad", "state_dict",
    "load_state_dict", "parameters",
    "named_parameters", "append", "extend", "update", "format", "join", "split", "strip", "info",
    "debug", "warning", "error", "log", "write", "close", "print", "set_epoch", "set_description",
    "set_postfix", "add", "add_scalar", "add_scalars", "add_image", "add_argument", "get", "keys",
    "values", "items", "size", "dim", "mean", "sum", "max", "min", "exists", "mkdir", "savefig",
    "wait", "finish", "watch", "flush", *_SAME_MODEL.split(),
}  # fmt: skip
_KEEPS_NOTHING = (
    "torch", "numpy", "os", "math", "random", "time", "tqdm", "json", "logging", "pathlib",
    "builtins", "itertools", "functools", "collections", "contextlib", "copy", "warnings",
    "wandb", "argparse", "sys", "typing", "datetime", "shutil", "rich", "transformers",
    "datasets", "torchvision", "einops", "tempfile", "sklearn", "scipy",
)  # fmt: skip
_COMPUTES = (
    "torch", "numpy", "os", "math", "builtins", "itertools", "functools", "operator", "pathlib",
    "sklearn", "scipy",
)  # fmt: skip
_PASS_ON: dict[str, tuple[str, ...]] = {"enumerate": (NUMBERED,), "cycle": (AGAIN,)}
_PASS_ON |= dict.fromkeys(("tqdm", "iter", "trange", "list", "reversed", "islice", "track"), ())


def from_star(name: str, names: Mapping[str, Value]) -> str:
    """Return the path of a name that a `from package import *` defines; "" for other names."""
    for package, own in _STARRED.items():
        if f"*{package}" in names and own.search(name):
            return f"{package}.{name}"
    return ""


def well_known(path: str) -> bool:
    """Return whether a function of this path keeps no important reference to its arguments."""
    return path.partition(".")[0] in _KEEPS_NOTHING


def computes(path: str) -> bool:
    """Return whether the result of a function of this path depends on nothing but its arguments."""
    return path.partition(".")[0] in _COMPUTES


def result_of(step: Step, *, started: bool) -> Value | None:
    """Return the result of a call of an imported name; None if nothing is known about it.

    Args:
        step: the call.
        started: whether `init_process_group` was called before.
    """
    path, name = step.path, step.path.rpartition(".")[2]
    if path in _TAGS:
        things = frozenset(thing for arg in step.args for thing in arg.things)
        return Value(things, frozenset(_TAGS[path]).union(*(arg.tags for arg in step.args)))
    if path == "torch.distributed.is_initialized":
        return Value(tags=frozenset({WORLD} if started else {WORLD, TOO_EARLY}))
    if path.startswith("builtins.") and name in ("int", "str", "bool", "float", "abs", "repr"):
        return _converted(step)
    if name in ("isinstance", "hasattr", "len", "type"):
        return Value(tags=step.args[0].tags & {WORLD} if step.args else frozenset())
    if name in _PASS_ON and step.args and well_known(path):
        return step.args[0].tagged(*_PASS_ON[name])
    if path == "builtins.range" and step.args:
        return _range(step.args)
    if path == "builtins.next" and step.args:
        return element_of(step.args[0])
    if path in _KIND_OF_PATH:
        return _made(_KIND_OF_PATH[path], step, None)
    if name == "zip" and step.args:
        return Value(
            frozenset(t for arg in step.args for t in arg.things), mixed([*step.args]).tags
        )
    return _of_library(step) or _of_torch(step, name)


def _range(limits: tuple[Value, ...]) -> Value:
    if len(limits) == 1 and isinstance(limits[0].const, int):
        return Value(const=range(limits[0].const))
    numbers = mixed([*limits])
    return strided(numbers, limits[0], limits[2]) if len(limits) == 3 else numbers


def _of_library(step: Step) -> Value | None:
    """Return random numbers, sorted elements, or a model of another library."""
    again = step.path.endswith("choice") and "replace" not in step.kwargs  # may draw it twice
    if step.path in _DRAWS and not again and not {"generator", "random_state"} & set(step.kwargs):
        return mixed([*step.args]).tagged(UNSEEDED)
    if step.path == "builtins.sorted" and step.args:
        return step.args[0].without(UNORDERED)
    if _RANDOM.match(step.path):
        return mixed([*step.args]).tagged(MAYBE_RANK)
    return _made("model", step, Value()) if _LIBRARY_MODEL.match(step.path) else None


def _converted(step: Step) -> Value | None:
    if not step.args:
        return None
    of = step.args[0]
    constant = of.const
    if constant is not UNKNOWN and step.path == "builtins.int":
        try:
            constant = int(str(constant))
        except ValueError:
            constant = UNKNOWN
    return Value(things=of.things, tags=of.tags, const=constant)


def _of_torch(step: Step, name: str) -> Value | None:
    path, first = step.path, step.args[0] if step.args else Value()
    if path == "torch.device" and len(step.args) == 1:
        return first
    if name in _SAMPLERS and path.startswith("torch"):
        inner = first if name == "BatchSampler" else Value()
        return _made("other sampler" if name != "BatchSampler" else "batch sampler", step, inner)
    if path.startswith("torch.optim.lr_scheduler.") and name[:1].isupper():
        return _made("scheduler", step, first)
    if name == "new_group":
        return _made("group", step, first)
    known = path.startswith(("torch.", "torchdata")) or name.endswith("DistributedSampler")
    if name in _KIND_OF_CALL and (known or name in WRAPPERS):
        module = step.argument(0, "module") or step.argument(0, "dataset")
        return _made(_KIND_OF_CALL[name], step, module or Value())
    if path == "torch.compile" and first.things:
        return _made("compiled", step, first)
    if name in ("compile", "fully_shard", "convert_sync_batchnorm", "checkpoint_wrapper"):
        return first
    if _is_optimizer(path, name):
        return _made("optimizer", step, first if step.args else step.kwargs.get("params"))
    return _computed(step, name)


def _computed(step: Step, name: str) -> Value | None:
    path = step.path
    if path.startswith("torch.nn.") and name[:1].isupper():
        loss = name.endswith("Loss")
        return _made("loss" if loss else "model", step, Value(parts=step.args))
    if path.startswith("torchvision.models"):
        return _made("model", step, Value())
    if path.startswith("torchvision.datasets") and name[:1].isupper():
        return _made("dataset", step, Value())
    if path.startswith(("torch.", "numpy.", "math.", "builtins.", "os.path.", "os.fspath")):
        if step.collective or name in ("isend", "irecv"):
            return _made("work", step, Value())
        kwargs = [value for key, value in step.kwargs.items() if key not in _PLACES]
        found = mixed([*step.args, *kwargs])
        return found.tagged(MEAN) if name == "mean" else found.without(GRAD)
    return None


def _is_optimizer(path: str, name: str) -> bool:
    torchs = path.startswith("torch.optim.") and path.count(".") <= 3 and "lr_scheduler" not in path
    return name[:1].isupper() and (torchs or name == "ZeroRedundancyOptimizer")


def _made(kind: str, step: Step, inner: Value | None) -> Value:
    return Value(things=frozenset({Thing(kind, step, inner)}))


def result_of_method(step: Step) -> Value:
    """Return the result of a method, if the object's class is not one of the script's."""
    receiver, name = step.receiver, step.method
    if receiver.of_kind(*MODELS):
        made = _of_model(step)
        if made is not None:
            return made
    if receiver.of_kind("optimizer") and name == "state_dict":
        return _made("state", step, Value())
    if name in _TAGS_OF_METHODS:
        return Value(tags=frozenset(_TAGS_OF_METHODS[name]))
    if name in MOVES:
        return receiver
    if name == "mean":
        return mixed([receiver, *step.args]).tagged(MEAN)
    if receiver.of_kind("loader", "sampler", "params", "generator") and name != "state_dict":
        return receiver
    return _computed_by_method(step)


def _computed_by_method(step: Step) -> Value:
    receiver, name = step.receiver, step.method
    if name == "format" and isinstance(receiver.const, str):
        return _formatted(step)
    if name in ("format", "join", "joinpath", "with_suffix", "with_name", "get"):
        return mixed([receiver, *step.values])
    found = mixed([receiver, *step.args])
    if name in _NOT_DIFFERENTIABLE:
        found = Value(tags=found.tags - {CUT})
    return found if name in _SAME_VALUE else uncertain(found)


def _formatted(step: Step) -> Value:
    """Return the result of `"...".format(...)`, which is a constant if all of its parts are."""
    values = step.values
    text: object = UNKNOWN
    if all(value.const is not UNKNOWN for value in values):
        try:
            text = str(step.receiver.const).format(
                *(value.const for value in step.args),
                **{name: value.const for name, value in step.kwargs.items()},
            )
        except (LookupError, ValueError, AttributeError, TypeError):
            text = UNKNOWN
    return replace(mixed(values), const=text)


def _of_model(step: Step) -> Value | None:
    """Return the result of a method of `nn.Module` or of a wrapper; None for others."""
    name = step.method
    if name in ("eval", "train"):
        wrapped = (inner for thing in step.receiver.things for inner in thing.inner.things)
        for thing in (*step.receiver.things, *wrapped):
            thing.evaluates = name == "eval" or (bool(step.args) and step.args[0].const is False)
    if name in _SAME_MODEL.split():
        return step.receiver
    if name in ("parameters", "named_parameters", "buffers"):
        return _made("params", step, step.receiver)
    if name in ("state_dict", "no_sync"):
        return _made("state" if name == "state_dict" else name, step, step.receiver)
    return output(step, step.receiver) if name == "forward" else None


def output(step: Step, model: Value) -> Value:
    """Return the output of a model or a loss: it depends on this rank's samples.

    It is also an output of the models whose outputs are its arguments.
    """
    passed = mixed(step.values)
    tags = passed.tags & {OWN, EVAL, CUT} | {DATA}
    if OWN in tags and (step.evaluating or any(thing.evaluates for thing in model.things)):
        tags |= {EVAL}
    return Value(things=passed.things | {Thing("output", step, model)}, tags=tags)


def element_of(iterable: Value) -> Value:
    """Return an element of a loop over a value."""
    if NUMBERED in iterable.tags:
        return Value(parts=(Value(), element_of(iterable.without(NUMBERED))))
    loaders = iterable.of_kind("loader")
    if loaders and not iterable.parts:  # a generator has parts: the values that it yields
        return Value(tags=frozenset({DATA, OWN} if all(map(_is_share, loaders)) else {DATA}))
    params = frozenset(iterable.of_kind("params"))
    if params:
        return Value(things=params, tags=iterable.tags)
    if iterable.parts:
        found = iterable.parts[0]
        for part in iterable.parts[1:]:
            found = either(found, part)
        return found
    return Value(tags=(iterable.tags - {RANK, SHARE, UNORDERED}) | {ELEMENT})


def _is_share(loader: Thing) -> bool:
    """Return whether a loader certainly has different samples on each rank."""
    sampler = loader.step.argument(3, "sampler") if loader.step else None
    return sampler is not None and any(
        thing.step is not None and thing.step.path.endswith("DistributedSampler")
        for thing in sampler.of_kind("sampler")
    )
