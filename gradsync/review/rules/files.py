"""Files and logs: the ranks that write and read them, and the contents of checkpoints."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator

from gradsync.review.findings import Hit, at, rule, whole, whole_script
from gradsync.review.flow.program import Program
from gradsync.review.flow.values import CLOCK, DATA, MAYBE_RANK, RANK, Guard, Step, Value, mixed
from gradsync.review.queries import (
    any_number_of_machines,
    argument_node,
    is_false,
    is_true,
    mentions,
    names_rank,
    of_one_machine,
    on_several_machines,
    same_text,
    share_files,
    surely_on_every_rank,
)

_DOWNLOADS = (
    "urllib.request.urlretrieve", "gdown.download", "wget.download", "nltk.download",
    "download_url", "download_and_extract_archive", "download_file_from_google_drive",
)  # fmt: skip
_RUNS = ("wandb.init", "mlflow.start_run", "SummaryWriter", "trackio.init")
_WRITERS = (
    "torch.save", "pyplot.savefig", "safetensors.torch.save_file", "numpy.save", "numpy.savez",
    "numpy.savetxt",
)  # fmt: skip
_NO_TENSORS = re.compile("scaler|sched", re.I)  # objects whose state has only numbers
_WRITES = ("savefig", "to_csv", "write_text", "write_bytes")  # methods


@rule(
    "DDP009",
    "Every rank saves the same file",
    topic="one rank writes files",
    remedy="Save on one rank: `if dist.get_rank() == 0:`. Then call a barrier on all ranks.",
    applies=whole_script,
)
def saved_on_every_rank(program: Program) -> Iterator[Hit]:
    """Find files that all ranks write to the same path at the same time."""
    for step in program.steps:
        if _writes_the_same_file(step) and surely_on_every_rank(step):
            yield at(
                step,
                "Every rank writes this file at the same time: it is written N times, and the "
                "result may be damaged.",
                sure=share_files(program),
            )


def _writes_the_same_file(step: Step) -> bool:
    """Return whether a call writes a file whose name is the same on all ranks."""
    path = _written(step)
    own = {RANK, MAYBE_RANK, DATA, CLOCK}  # a file for each rank, sample or time
    return path is not None and not path.of_kind("buffer") and not path.deep_tags() & own


def _written(step: Step) -> Value | None:
    """Return the path of the file that a call writes; None for other calls."""
    name = step.path.rpartition(".")[2]
    if step.path == "builtins.open":
        mode = step.argument(1, "mode")
        writes = mode is not None and str(mode.const).startswith("w") and not step.handlers
        to = step.args[0] if step.args else Value()
        return to if writes and to.const != os.devnull and to.path != "os.devnull" else None
    if step.method in _WRITES:
        return step.argument(0, "path") if step.method in ("savefig", "to_csv") else step.receiver
    if not step.path.endswith(_WRITERS):
        return None
    position = 1 if name in ("save", "save_file") and "numpy" not in step.path else 0
    return step.argument(position, "f") or step.argument(position, "filename")


@rule(
    "DDP041",
    "One rank on each machine saves the same file",
    topic="one rank writes files",
    remedy="Save where the rank among all ranks is 0: `if dist.get_rank() == 0:`.",
    applies=whole_script,
)
def saved_on_each_machine(program: Program) -> Iterator[Hit]:
    """Find files that are written where the rank on this machine is 0."""
    for step in program.steps:
        by_rank = [guard.value for guard in step.guards if guard.value.tags & {RANK, MAYBE_RANK}]
        state = any(thing.kind == "state" for arg in step.args for thing in arg.deep())
        once = by_rank and all(of_one_machine(program, value) for value in by_rank)
        if once and _writes_the_same_file(step):
            yield at(
                step,
                "On several machines, one rank of each of them writes this file at the same time, "
                "and the result may be damaged.",
                sure=on_several_machines(program) or (state and any_number_of_machines(program)),
            )


@rule(
    "DDP037",
    "All ranks make or delete the same folder",
    topic="one rank writes files",
    remedy="Pass `exist_ok=True`; delete on one rank, and call a barrier on all ranks after it.",
    applies=whole_script,
)
def races_for_a_folder(program: Program) -> Iterator[Hit]:
    """Find folders that a rank makes after another rank has made them, or deletes again."""
    for step in program.steps:
        own = step.receiver.of_kind("module")  # a function of the script's own
        makes = step.path in ("os.mkdir", "os.makedirs") or (step.method == "mkdir" and not own)
        deletes = step.path == "shutil.rmtree"
        if (not makes and not deletes) or step.handlers or not surely_on_every_rank(step):
            continue
        if mixed([step.receiver, *step.args]).tags & {RANK, MAYBE_RANK}:
            continue
        if makes and not is_false(step.argument(2, "exist_ok") or Value(const=False)):
            continue
        if makes:
            yield at(
                step,
                "If another rank makes this folder first, this rank raises FileExistsError, even "
                "if it has just checked that there is no such folder.",
            )
        else:
            yield at(
                step,
                "Every rank deletes this folder at a time of its own: a rank may delete the files "
                "that another one has written there, or raise FileNotFoundError.",
            )


@rule(
    "DDP010",
    "Every rank downloads the data",
    topic="one rank writes files",
    remedy="Download on one rank, then call a barrier on all ranks before they read.",
    applies=whole,
)
def downloaded_on_every_rank(program: Program) -> Iterator[Hit]:
    """Find downloads that all ranks make into the same folder."""
    first = {step.path for step in program.parent}  # what one process has downloaded before
    for step in program.steps:
        if not _downloads(step):
            continue
        waits = (s for s in program.steps[: step.index] if s.collective == "barrier")
        if not surely_on_every_rank(step) or any(s.on_some_ranks for s in waits):
            first.add(step.path)  # or all but one rank wait before it
        elif step.path not in first:
            yield at(
                step,
                "Every rank downloads into the same folder at the same time. A rank may read files "
                "that another one is still writing.",
                sure=share_files(program),
            )
            return  # the downloads of other parts of the data are the same mistake


def _downloads(step: Step) -> bool:
    torchvisions = step.path.startswith("torchvision.datasets.")
    return step.path.endswith(_DOWNLOADS) or (torchvisions and is_true(step.kwargs.get("download")))


@rule(
    "DDP011",
    "A file is read before the rank that writes it has finished",
    topic="one rank writes files",
    remedy="Call `dist.barrier()` on all ranks between writing and reading.",
    applies=whole,
)
def read_too_early(program: Program) -> Iterator[Hit]:
    """Find files that one rank writes and all ranks read, without a collective in between."""
    writes = [step for step in program.calls("torch.save") if step.on_some_ranks]
    for read in program.calls("torch.load"):
        if read.on_some_ranks:
            continue
        path = argument_node(read, 0, "f")
        for write in writes:
            if write.function != read.function or write.stack != read.stack:
                continue
            same = same_text(argument_node(write, 1, "f"), path)
            if same and program.before(write, read) and not _meet(program, write, read):
                yield at(
                    read,
                    f"Line {write.node.lineno} writes this file on one rank, but the others don't "
                    "wait for it: they may find no file, or an incomplete one.",
                )
                break


def _meet(program: Program, one: Step, other: Step) -> bool:
    """Return whether all ranks call a collective between two steps."""
    between = program.steps[program.steps.index(one) : program.steps.index(other)]
    return any(step.collective and not step.on_some_ranks for step in between) or any(
        step.method in ("wait_for_everyone", "barrier", "synchronize") for step in between
    )


@rule(
    "DDP012",
    "The wrapper's state_dict is saved instead of the model's",
    topic="checkpoints fit the model",
    remedy="Save `model.module.state_dict()`.",
    applies=whole,
    kind="possible mistake",
)
def state_of_the_wrapper(program: Program) -> Iterator[Hit]:
    """Find checkpoints whose names all begin with "module."."""
    for step in program.methods("load_state_dict"):
        if step.receiver.of_kind("ddp"):
            return  # the wrapper loads it, so the names fit
    if mentions(program, r"""["']module\.["']|consume_prefix_in_state_dict_if_present"""):
        return  # the prefix is removed
    for save in program.calls("torch.save"):
        for state in (save.args[0] if save.args else Value()).deep():
            if state.kind == "state" and state.step and state.inner.surely("ddp"):
                yield at(
                    state.step,
                    "In the wrapper's state_dict, each name begins with `module.`, so a model "
                    "without the wrapper can't load it.",
                )


@rule(
    "DDP046",
    "The checkpoint has only one rank's shards",
    topic="checkpoints fit the model",
    remedy="Use `torch.distributed.checkpoint.save`, or gather the parameters on all ranks: "
    "`get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))`.",
    applies=lambda program: program.entry and bool(program.sharded),
)
def shards_of_one_rank(program: Program) -> Iterator[Hit]:
    """Find models sharded by `fully_shard` whose own state_dict is saved to one file."""
    models = {thing for step in program.sharded if step.args for thing in step.args[0].things}
    for save in program.calls("torch.save"):
        path = save.argument(1, "f")
        for state in (save.args[0] if save.args else Value()).deep():
            sharded = state.kind == "state" and models & set(state.inner.things)
            if sharded and not (path and path.deep_tags() & {RANK, MAYBE_RANK}):
                yield at(
                    save,
                    "The state_dict of a sharded model has only this rank's shards, so the file "
                    "lacks the other ranks' parameters.",
                )


@rule(
    "DDP013",
    "`torch.load` has no `map_location`",
    topic="checkpoints fit the model",
    remedy='Pass `map_location="cpu"`, or the device of this rank.',
    applies=whole,
)
def no_map_location(program: Program) -> Iterator[Hit]:
    """Find checkpoints that every rank loads onto the GPU of the rank that saved them."""
    if not mentions(program, r"cuda|nccl") or mentions(
        program, r"(offload_to_cpu|cpu_offload)=True"
    ):
        return
    restored = {
        thing.step
        for step in program.methods("load_state_dict")
        if not _NO_TENSORS.search(ast.unparse(step.node.func))
        for value in step.args
        for thing in value.deep()
        if thing.kind == "checkpoint"
    }
    placed = [s for s in program.calls("torch.load") if s.argument(1, "map_location") or s.spread]
    elsewhere = {(g.node, not g.positive) for step in placed for g in step.guards}
    for step in program.calls("torch.load"):
        if step in placed or step not in restored or not surely_on_every_rank(step):
            continue
        if elsewhere.intersection((g.node, g.positive) for g in step.guards):
            continue  # `if device is None: torch.load(path)`
        if not any(value.deep_tags() & {RANK, MAYBE_RANK} for value in step.args):
            yield at(
                step,
                "Every rank loads the tensors onto the GPU from which they were saved, usually "
                "GPU 0, so its memory then contains N copies.",
            )


@rule(
    "DDP014",
    "Every rank writes the same log",
    topic="one rank logs",
    remedy="Log on one rank: `if dist.get_rank() == 0:`.",
    applies=whole,
)
def logs_on_every_rank(program: Program) -> Iterator[Hit]:
    """Find runs that all ranks record, and lines that all ranks print in the training loop."""
    for step in program.calls(*_RUNS):
        grouped = "group" in step.kwargs  # the runs of all ranks are kept together
        if surely_on_every_rank(step) and not names_rank(step) and not grouped:
            what = step.path.rpartition(".")[2]
            yield at(step, f"Every rank calls `{what}`, which makes N runs or logs instead of one.")
    if _replaces_print(program):
        return
    outside = {loop for step in program.parent for loop in step.loops}
    training = {loop for step in program.backwards for loop in step.loops} - outside
    prints = [s for s in program.calls("builtins.print") if training.intersection(s.loops)]
    # These show each rank's output, or describe an object when it is made.
    seen = {"__init__", *(step.function for step in prints if names_rank(step))}
    for step in prints:
        if "file" in step.kwargs or step.function in seen or not surely_on_every_rank(step):
            continue
        if all(_is_regular(guard) for guard in step.guards if not guard.early):
            seen.add(step.function)
            yield at(
                step,
                "Every rank prints this line in each iteration of the training loop.",
                sure=share_files(program),
            )


def _is_regular(guard: Guard) -> bool:
    """Return whether a branch is taken in normal training, not for an error or a first use."""
    branch = getattr(guard.node, "body" if guard.positive else "orelse", [])
    leaves = (ast.Return, ast.Raise, ast.Break, ast.Continue)
    if not isinstance(guard.node, ast.If):
        return True
    regular = re.search("%|step|iter|epoch|batch|verbose|log(?!it)", ast.unparse(guard.node.test))
    return bool(regular) and not any(isinstance(part, leaves) for part in branch)


def _replaces_print(program: Program) -> bool:
    """Return whether the script replaces `print` on the other ranks, or prints nothing there."""
    for source in program.sources:
        for node in source.nodes:
            if isinstance(node, (ast.Assign, ast.FunctionDef)):
                targets = node.targets if isinstance(node, ast.Assign) else []
                names = {getattr(t, "attr", getattr(t, "id", "")) for t in targets}
                if {"print", "stdout"} & names or getattr(node, "name", "") == "print":
                    return True
    return False
