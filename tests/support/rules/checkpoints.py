"""Mistakes in saving and loading checkpoints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gradsync.records import Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.testing.values import EXACT, close
from gradsync.text import counted, listed, ranks_text

REFUSED = re.compile(  # torch's own error message
    r"[Ww]eights.?only.*(?:GLOBAL ([\w.]+)|Unsupported operand)", re.DOTALL
)
# Parts of the error messages of a write that reached the limit.
CUT_SHORT = ("too large", "PytorchStreamWriter", "inline_container")


def writes_too(guide: str) -> Rule:
    """Return the rule for a rank other than 0 that wrote, and so reached its limit of bytes."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        failure = seen.failure
        if failure is None or failure.status != "error" or 0 in failure.diagnosis.ranks:
            return None
        if not any(sign in (failure.detail or "") for sign in CUT_SHORT):
            return None
        ranks, where = failure.diagnosis.ranks, failure.diagnosis.where
        text = (
            f"{ranks_text(ranks).capitalize()} wrote to the disk, at {where}. Only rank 0 may "
            "write a checkpoint, or the ranks overwrite each other's file."
        )
        return Diagnosis("every-rank-writes", ranks, text, where, guide)

    return rule


def other_ranks_write(names: Sequence[Sequence[str]], guide: str) -> Diagnosis | None:
    """Judge the names of the files that each rank created in the folder of the checkpoint."""
    wrong = [rank for rank, made in enumerate(names) if rank != 0 and made]
    if not wrong:
        return None
    found = listed(name for rank in wrong for name in names[rank])
    text = (
        f"{ranks_text(wrong).capitalize()} created files beside the checkpoint: {found}. Only "
        "rank 0 may write. Files of other ranks would stay on the disk."
    )
    return Diagnosis("every-rank-writes", tuple(wrong), text, guide=guide)


def former_file_not_replaced(replaced: bool, guide: str) -> Diagnosis | None:
    """Judge whether a save of another state replaced the file at the same path."""
    if replaced:
        return None
    text = (
        "A second save_checkpoint to the same path, one epoch later, left the first file as it "
        "was. The new checkpoint must replace an existing file, or training always resumes from "
        "the first one."
    )
    return Diagnosis("state-lost", (0,), text, guide=guide)


def file_missing(found: Sequence[bool], guide: str) -> Diagnosis | None:
    """Judge whether each rank found a file at the path when save_checkpoint returned."""
    absent = tuple(rank for rank, is_there in enumerate(found) if not is_there)
    if not absent:
        return None
    if 0 in absent:
        text = (
            "save_checkpoint returned on rank 0, but there is no file at the given path. When it "
            "returns, the file must be there, under exactly this name."
        )
        return Diagnosis("state-lost", (0,), text, guide=guide)
    text = (
        f"save_checkpoint returned on {ranks_text(absent)} before the file existed. Every rank "
        "must wait until rank 0 has written it: a barrier comes after the write."
    )
    return Diagnosis("others-do-not-wait", absent, text, guide=guide)


def too_small(size: int, least: int, guide: str) -> Diagnosis | None:
    """Judge the size of a checkpoint in bytes: the model's parameters alone take `least`.

    A file may be compressed, though random numbers shrink only by a tenth.
    """
    if size >= least / 2:
        return None
    text = (
        f"save_checkpoint writes a file of {counted(size, 'byte')}, but the parameters of this "
        f"model alone take {least}. The file must contain the model, the optimizer and the epoch."
    )
    return Diagnosis("state-lost", (0,), text, guide=guide)


def former_file_seen(contents: Sequence[Sequence[bytes]], guide: str) -> Diagnosis | None:
    """Judge the file that each rank found before a save, and when the save returned.

    If rank 0 itself finds the previous content, the file was not replaced: a different mistake.
    """
    previous, new = contents[0]
    early = [rank for rank, (_, found) in enumerate(contents) if found == previous]
    if not previous or previous == new or not early:
        return None
    text = (
        f"save_checkpoint returned on {ranks_text(early)} while the file at the path was still the "
        "previous checkpoint. Every rank must wait until rank 0 has written the new file. It is "
        "not enough that a file exists."
    )
    return Diagnosis("others-do-not-wait", tuple(early), text, guide=guide)


def former_file_harmed(harm: Sequence[str], guide: str) -> Diagnosis | None:
    """Judge the changes of the previous file before the new one was in its place.

    Args:
        harm: `removed`, `renamed` or `emptied`, in the order of the events.
        guide: the heading of GUIDELINES.md to read.
    """
    if not harm:
        return None
    text = (
        f"The previous checkpoint was {harm[0]} before the new one was in its place. If training "
        "crashes in between, no complete checkpoint is left. Write the new file completely, in the "
        "same folder, and then replace the previous one in a single step. A file in the folder for "
        "temporary files can't be moved in a single step, because it is often on another disk."
    )
    return Diagnosis("not-atomic", (0,), text, guide=guide)


def written_in_another_folder(brought: bool, guide: str) -> Diagnosis | None:
    """Judge whether the new file was written in another folder and then moved to its path."""
    if not brought:
        return None
    text = (
        "save_checkpoint wrote the new file in another folder and then moved it to its path. The "
        "folder for temporary files is often on another disk. Moving a file between disks can fail "
        "or be interrupted halfway. Write the new file in the folder of the checkpoint."
    )
    return Diagnosis("not-atomic", (0,), text, guide=guide)


def next_save_fails(again: str | None, renewed: bool, guide: str) -> Diagnosis | None:
    """Judge the save after an interrupted one: the error it raised, whether the file is new."""
    if again is None and renewed:
        return None
    result = f"fails with {again}" if again else "leaves the old file in its place"
    text = (
        f"After an interrupted save_checkpoint, the next one {result}. The files that an "
        "interrupted save leaves behind must not affect the next save."
    )
    return Diagnosis("not-atomic", (0,), text, guide=guide)


def unsafe_content(refused: str | None, guide: str) -> Diagnosis | None:
    """Judge the class because of which torch refuses to load the saved file, if there is one."""
    if refused is None:
        return None
    text = f"The file that save_checkpoint writes {_content(refused)}"
    return Diagnosis("unsafe-load", (0,), text, guide=guide)


def unsafe_file_refused(guide: str) -> Rule:
    """Return the rule for a load that torch rightly refused because of what the file contains."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        failure = seen.failure
        found = REFUSED.search((failure and failure.detail) or "")
        if failure is None or found is None:
            return None
        ranks, where = failure.diagnosis.ranks, failure.diagnosis.where
        at = f" at {where}" if where else ""
        text = (
            f"load_checkpoint can't read the file of save_checkpoint{at}: the file "
            f"{_content(found[1])} Fix save_checkpoint, not load_checkpoint."
        )
        return Diagnosis("unsafe-load", ranks, text, where, guide)

    return rule


def _content(refused: str | None) -> str:
    if refused is None:
        return (
            "uses a newer pickle protocol than torch's safe loading supports. Use torch.save's "
            "default `pickle_protocol`."
        )
    what = f"an object of {refused}"
    if refused.endswith("getattr"):  # how a method is pickled
        what = "a method (a function was saved instead of its result)"
    return (
        f"contains more than tensors and plain values, for example {what}. Such a file can't be "
        "loaded without running code from it. Save only the epoch and the "
        "`state_dict()` of the model and of the optimizer."
    )


def trainable_changed(trainable: Sequence[bool], guide: str) -> Rule:
    """Return the rule for a load that changes which parameters are `trainable`."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        wrong = [r for r, value in enumerate(seen) if not close(value["trainable"], trainable)]
        text = (
            "After load_checkpoint, a different set of parameters is trainable. Leave "
            "`requires_grad` as it was before the call."
        )
        return Diagnosis("frozen-touched", tuple(wrong), text, guide=guide) if wrong else None

    return rule


def epoch_not_an_int(guide: str) -> Rule:
    """Return the rule for an epoch that is not an int; a rank reports its type as `kind`."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        wrong = [rank for rank, value in enumerate(seen) if value["kind"] is not None]
        if not wrong:
            return None
        kind = seen[wrong[0]]["kind"]
        text = f"load_checkpoint returns the epoch as a {kind}. It must be an int."
        return Diagnosis("wrong-signature", tuple(wrong), text, guide=guide)

    return rule


def step_after_load_differs(after: Any, guide: str) -> Rule:
    """Return the rule for an optimizer step after loading that leads to wrong weights.

    Each rank reports the weights as `loaded` and `after` the step, where `after` is right.
    """

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        wrong = tuple(rank for rank, value in enumerate(seen) if not close(value["after"], after))
        if not wrong:
            return None
        still = all(close(seen[rank]["after"], seen[rank]["loaded"], EXACT) for rank in wrong)
        code = "state-lost"
        result = (
            "leads to different weights than without saving and loading. Restore the complete "
            "state of the optimizer."
        )
        if still:
            code = "tensors-replaced"
            result = (
                "leaves the model unchanged: the optimizer still trains the parameters that the "
                "model had before. Copy the loaded values into these parameters instead of "
                "replacing them."
            )
        text = f"After load_checkpoint, an optimizer step {result}"
        return Diagnosis(code, wrong, text, guide=guide)

    return rule
