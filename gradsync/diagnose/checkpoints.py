"""Mistakes with files that a training leaves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gradsync.diagnose import Rule
from gradsync.diagnose.values import EXACT, close
from gradsync.records import Diagnosis, Observation
from gradsync.text import counted, ranks_text

REFUSED = re.compile(  # torch's own words
    r"[Ww]eights.?only.*(?:GLOBAL ([\w.]+)|Unsupported operand)", re.DOTALL
)
CUT_SHORT = ("too large", "PytorchStreamWriter", "inline_container")  # what such a write says


def writes_too(guide: str) -> Rule:
    """Return the rule for a rank that should not write, known by the limit that it ran into."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        failure = seen.failure
        if failure is None or failure.status != "error" or 0 in failure.diagnosis.ranks:
            return None
        if not any(sign in (failure.detail or "") for sign in CUT_SHORT):
            return None
        ranks, where = failure.diagnosis.ranks, failure.diagnosis.where
        text = (
            f"{ranks_text(ranks)} wrote to the disk, at "
            f"{where}: rank 0 alone writes a checkpoint, or N ranks write over each other"
        )
        return Diagnosis("every-rank-writes", ranks, text, where, guide)

    return rule


def written_beside(names: Sequence[Sequence[str]], guide: str) -> Diagnosis | None:
    """Judge the names of the files that each rank made where the checkpoint is."""
    wrong = [rank for rank, made in enumerate(names) if rank != 0 and made]
    if not wrong:
        return None
    found = ", ".join(name for rank in wrong for name in names[rank])
    text = (
        f"beside the checkpoint {ranks_text(wrong)} made files too: {found}. Rank 0 alone writes, "
        "and nobody clears away what the others leave"
    )
    return Diagnosis("every-rank-writes", tuple(wrong), text, guide=guide)


def former_file_stays(replaced: bool, guide: str) -> Diagnosis | None:
    """Judge whether a save of another state, with nothing in its way, left another file."""
    if replaced:
        return None
    text = (
        "a second save_checkpoint to the same path, an epoch later, leaves the first one's file "
        "as it was: a file that is there is to be replaced, or training would go on from its first "
        "checkpoint for ever"
    )
    return Diagnosis("state-lost", (0,), text, guide=guide)


def not_there(found: Sequence[bool], guide: str) -> Diagnosis | None:
    """Judge whether each rank found a file at the path when its save returned."""
    absent = tuple(rank for rank, is_there in enumerate(found) if not is_there)
    if not absent:
        return None
    if 0 in absent:
        text = (
            "save_checkpoint returned on rank 0, which writes, and there was no file at the path "
            "that it was given: it is to be there by then, by just that name"
        )
        return Diagnosis("state-lost", (0,), text, guide=guide)
    text = (
        f"save_checkpoint returned on {ranks_text(absent)} before the file was there: every rank "
        "has to wait until rank 0 has written it"
    )
    return Diagnosis("others-do-not-wait", absent, text, guide=guide)


def too_small(size: int, least: int, guide: str) -> Diagnosis | None:
    """Judge the number of bytes of a checkpoint: the model's parameters alone take `least`."""
    if size >= least:
        return None
    text = (
        f"save_checkpoint writes a file of {counted(size, 'byte')}, and the parameters of this "
        f"model alone take {least}. The file holds the model, the optimizer and the epoch"
    )
    return Diagnosis("state-lost", (0,), text, guide=guide)


def former_file_seen(contents: Sequence[Sequence[bytes]], guide: str) -> Diagnosis | None:
    """Judge what each rank found at the path before a save and when it returned from it.

    Where rank 0 itself finds the former content the file was not replaced, which is another
    mistake.
    """
    former, new = contents[0]
    early = [rank for rank, (_, found) in enumerate(contents) if found == former]
    if not former or former == new or not early:
        return None
    text = (
        "where a former checkpoint was there already, save_checkpoint returned on "
        f"{ranks_text(early)} while it was still that one: that a file is there does not say that "
        "rank 0 has written the new one. Every rank has to wait for rank 0"
    )
    return Diagnosis("others-do-not-wait", tuple(early), text, guide=guide)


def former_file_away(harm: Sequence[str], guide: str) -> Diagnosis | None:
    """Judge what a save did to the former file at its path before the new one came there.

    Args:
        harm: `removed`, `renamed` or `emptied`, in turn.
        guide: the heading of GUIDELINES.md to read.
    """
    if not harm:
        return None
    text = (
        f"save_checkpoint had the former file {harm[0]} before the new one was in its place: a "
        "crash between the two leaves no whole checkpoint. A complete file from the same folder "
        "can take the place of another in one step; from another disk, where a temporary folder "
        "often is, it can't"
    )
    return Diagnosis("not-atomic", (0,), text, guide=guide)


def brought_from_elsewhere(brought: bool, guide: str) -> Diagnosis | None:
    """Judge whether the new file was written in another folder, and then moved to its path."""
    if not brought:
        return None
    text = (
        "save_checkpoint wrote the new file in another folder, and moved it to its path from "
        "there. That folder may be on another disk, as the one for temporary files often is: then "
        "the move is a copy, which a crash can cut short, or is refused. The file is to be written "
        "in the folder where it will stay"
    )
    return Diagnosis("not-atomic", (0,), text, guide=guide)


def stumbles_over_the_rest(again: str | None, renewed: bool, guide: str) -> Diagnosis | None:
    """Judge the save after one that broke off: the error it ended in, whether the file is new."""
    if again is None and renewed:
        return None
    came = f"fails with {again}" if again else "leaves the old file in its place"
    text = (
        f"after a save_checkpoint that broke off halfway the next one {came}: what a crash has "
        "left must not be in its way"
    )
    return Diagnosis("not-atomic", (0,), text, guide=guide)


def read_by_nobody(refused: str | None, guide: str) -> Diagnosis | None:
    """Judge the class for which torch refuses to read what was saved, if there is one."""
    if refused is None:
        return None
    text = f"save_checkpoint writes a file that {_holding(refused)}"
    return Diagnosis("unsafe-load", (0,), text, guide=guide)


def more_than_values(guide: str) -> Rule:
    """Return the rule for a load that torch refused, rightly, for what the file holds."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        failure = seen.failure
        found = REFUSED.search((failure and failure.detail) or "")
        if failure is None or found is None:
            return None
        ranks, where = failure.diagnosis.ranks, failure.diagnosis.where
        at = f", at {where}" if where else ""
        text = (
            f"load_checkpoint is refused the file that save_checkpoint wrote{at}. It "
            f"{_holding(found[1])}. It is the saving that has to change, and not the way of "
            "reading"
        )
        return Diagnosis("unsafe-load", ranks, text, where, guide)

    return rule


def _holding(refused: str | None) -> str:
    if refused is None:
        return (
            "is pickled by a newer protocol than that which the safe reading knows: leave "
            "`pickle_protocol` as torch.save has it"
        )
    what = f"an object of {refused}, say"
    if refused.endswith("getattr"):  # which is how a method is pickled
        what = "a method, as a function is that was handed on and not called"
    return (
        f"holds more than tensors and plain values: {what}. Nobody can read "
        "that without running code from the file. All that is needed of a model or an optimizer "
        "is its state, as a dictionary"
    )


def set_free(trainable: Sequence[bool], guide: str) -> Rule:
    """Return the rule for loading that changes which parameters are `trainable`."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        wrong = [r for r, value in enumerate(seen) if not close(value["trainable"], trainable)]
        text = (
            "after load_checkpoint another set of parameters is trainable than before: "
            "`requires_grad` is to stay as it is"
        )
        return Diagnosis("frozen-touched", tuple(wrong), text, guide=guide) if wrong else None

    return rule


def no_whole_number(guide: str) -> Rule:
    """Return the rule for an epoch that is of another `kind` than an int's."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        wrong = [rank for rank, value in enumerate(seen) if value["kind"] is not None]
        if not wrong:
            return None
        text = f"load_checkpoint returns the epoch as a {seen[wrong[0]]['kind']}: an int is wanted"
        return Diagnosis("wrong-signature", tuple(wrong), text, guide=guide)

    return rule


def goes_on_otherwise(after: Any, guide: str) -> Rule:
    """Return the rule for weights that an optimizer step after loading does not bring to `after`.

    The ranks tell the weights as `loaded`, and as they are `after` the step.
    """

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        wrong = tuple(rank for rank, value in enumerate(seen) if not close(value["after"], after))
        if not wrong:
            return None
        still = all(close(seen[rank]["after"], seen[rank]["loaded"], EXACT) for rank in wrong)
        code, came = "state-lost", "ends elsewhere than it would have without saving and loading"
        if still:
            code = "tensors-replaced"
            came = (
                "leaves the model as it is: the optimizer still trains the parameters that the "
                "model had before. Loading is to fill those, not to put others in their place"
            )
        text = f"after load_checkpoint an optimizer step {came}"
        return Diagnosis(code, wrong, text, guide=guide)

    return rule
