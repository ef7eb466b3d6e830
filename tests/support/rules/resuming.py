"""Mistakes in a training run that should continue where an earlier one was interrupted.

They are recognised by two things. The first weights should be the weights of a training run without
interruption at some step, and the samples should be the samples that follow that step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradsync.ranks.deadlocks.explanations import without_advice
from gradsync.records import Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.testing.values import close
from gradsync.text import counted, full_stop, listed
from support.rules.epochs import other_epochs, other_shares

GUIDE = "Resuming"
Run = Sequence[Mapping[str, Any]]  # by rank


def resumed_wrongly(
    whole: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], interrupted: int
) -> Diagnosis:
    """Return the diagnosis of a resumed training run that ended with the wrong weights.

    Args:
        whole: for each rank of a training run without interruption: `trained`, the samples in the
            order in which they were used, one per step; `weights`, before each step; and, if known,
            `states`, what its optimizer kept before each step.
        second: the same for the resumed training run.
        interrupted: the number of samples that a rank used before the interruption.
    """
    taken, all_steps = len(second[0]["trained"]), len(whole[0]["trained"])
    start = all_steps - taken
    code, text = _explanation(whole, second, start)
    ranks = tuple(range(len(second)))
    text = (
        f"Without an interruption, each rank uses {all_steps} samples. This training run was "
        f"interrupted after {interrupted}, and the resumed call used {taken}. {text}"
    )
    return Diagnosis(code, ranks, text, guide=GUIDE)


def _explanation(
    whole: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], start: int
) -> tuple[str, str]:
    if not len(second[0]["trained"]):
        return "samples-missing", "The resumed call must use the remaining samples."
    firsts = [one["weights"][0] for one in second if len(one["weights"])]
    steps = [n for n, weights in enumerate(whole[0]["weights"]) if close(firsts[0], weights)]
    if start <= 0:
        if not any(steps):
            return "resume-lost", (
                "The resumed call did not continue from the file. Before the first step, load the "
                "weights and the position from it."
            )
        left = counted(len(whole[0]["weights"]) - steps[0], "step")
        return "samples-repeated", (
            f"The resumed call continued with the weights before the last {left}, but did not skip "
            "the samples used before."
        )
    if not all(close(one, firsts[0]) for one in firsts):
        return "models-differ", (
            "The ranks continued with different weights. Every rank must start with the weights "
            "in the file."
        )
    if not steps:
        return "resume-lost", (
            "The resumed call started with weights that a training run without interruption never "
            "has: the weights in the file are not used, or are not the weights after a step."
        )
    if start != steps[0]:
        code = "samples-repeated" if start < steps[0] else "samples-missing"
        what = "used again" if start < steps[0] else "left out"
        return code, (
            f"The resumed call loaded the weights that the model had after "
            f"{counted(steps[0], 'sample')}, but its data continues after sample {start}: some "
            f"samples are {what}. {_advice(whole, start, steps[0])}"
        )
    if any(s["trained"] != w["trained"][start:] for s, w in zip(second, whole, strict=True)):
        return "samples-repeated", (
            "The number of samples is right, but some are repeated and some are missing. The "
            "resumed call must continue in the same epoch's order, after the last sample that was "
            "used before the interruption."
        )
    text = (
        "Its first weights and its samples are right, but its final weights differ from the "
        "weights of a training run without interruption."
    )
    kept = {name for one in whole for names in one.get("states", ())[-1:] for name in names}
    if kept and not any(one["states"][0] for one in second):
        return "state-lost", (
            f"{text} Its optimizer keeps {listed(f'`{name}`' for name in sorted(kept))} for each "
            "parameter, but started without. Save the optimizer's `state_dict()` too."
        )
    return "state-lost", (
        f"{text} Save everything that a step depends on, for example momentum and a changing "
        "learning rate."
    )


def _advice(whole: Sequence[Mapping[str, Any]], start: int, reached: int) -> str:
    """Say what to do if the data continue after another sample than the weights have reached."""
    epochs, world_size = len(whole[0].get("history", ())), len(whole)
    share = len(whole[0]["trained"]) // max(1, epochs)
    before, of_epoch = divmod(reached, max(1, share))
    if world_size > 1 and start == before * share + of_epoch // world_size:
        return (
            "In this epoch, that is the position divided by the number of ranks: `samples_seen` of "
            "`resume` counts the samples of all ranks together, so multiply the samples of one "
            "rank by the number of ranks."
        )
    return "Save the position together with the weights."


def beyond_epochs(second: Sequence[Mapping[str, Any]], epochs: int) -> Diagnosis | None:
    """Recognise a resumed training run whose `history` has more epochs than it was called with."""
    last = max((round(row["epoch"]) for one in second for row in one["history"]), default=0)
    if last < epochs:
        return None
    text = (
        f"With epochs={epochs}, a training run that was resumed from a file trained up to epoch "
        f"{last}. `epochs` includes the epochs before the interruption, so the last epoch is "
        f"{epochs - 1}."
    )
    return Diagnosis("samples-repeated", tuple(range(len(second))), text, guide=GUIDE)


def other_resumed_loss(
    second: Sequence[Mapping[str, Any]], whole: float, steps: int
) -> Diagnosis | None:
    """Return the diagnosis if the train loss of the resumed epoch is wrong.

    It may be the mean over the complete epoch, or over the samples after the interruption.

    Args:
        second: for each rank of the resumed training run, the `losses` of its steps, and its
            `history`.
        whole: the train loss of that epoch in a training run without interruption.
        steps: the number of steps of a rank in that epoch after the interruption.
    """
    losses = [loss for one in second for loss in one["losses"][:steps]]
    rest = sum(losses) / len(losses)
    returned = [one["history"][0]["train_loss"] for one in second]
    if all(close(own, whole) or close(own, rest) for own in returned):
        return None
    text = (
        f"`train_loss` of the resumed epoch is {returned[0]:.4g}. It must be the mean over the "
        f"complete epoch, {whole:.4g}, or over the samples after the interruption, {rest:.4g}. "
        "Save and restore the sum of the losses so far, together with the number of samples in it."
    )
    return Diagnosis("state-lost", (), text, guide=GUIDE)


# (the exception, a part of its message in lower case, the code if it is another, the advice)
FAILURES = (
    (
        "",
        "pickle",
        "unsafe-load",
        "train writes whole objects, such as the model itself, into the file of `resume_from`. "
        "Reading them would run code from the file. Write only tensors and plain values, such as "
        "`state_dict()` of the model and the optimizer.",
    ),
    (
        "FileNotFoundError",
        "' -> '",
        None,
        "Has another rank renamed it already? Only rank 0 may write the file.",
    ),
    (
        "FileNotFoundError",
        "no such file",
        None,
        "The file of `resume_from` need not exist: then training starts from the beginning.",
    ),
)


def file_misused(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise a training run that fails because of its file."""
    failure = seen.failure
    if failure is None:
        return None
    for exception, part, other, advice in FAILURES:
        raised = exception in (failure.exception or "")
        if raised and part in (failure.detail or "").lower():
            text = f"{full_stop(failure.diagnosis.explanation)} {advice}"
            code = other or failure.diagnosis.code
            return replace(failure.diagnosis, code=code, explanation=text, guide=GUIDE)
    return None


def ranks_resume_apart(without: Callable[[], Observation]) -> Rule:
    """Return the rule for ranks that call different collectives after training is resumed.

    `without` runs the same training, but does not resume it.
    """

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        failure = seen.failure
        if failure is None or failure.status != "deadlock" or without().failure is not None:
            return None
        text = (
            "The ranks do not match in the call that resumes training from the file. "
            f"{full_stop(without_advice(failure.diagnosis.explanation))} All ranks must begin at "
            "the same epoch and the same sample: does each of them know what the file says?"
        )
        return replace(failure.diagnosis, explanation=text, guide=GUIDE)

    return rule


def file_missing(exists: bool) -> Diagnosis | None:
    """Recognise a training run that leaves no file."""
    text = (
        "After a training run with `resume_from`, there is no file at that path. Save the state "
        "there at least once in each epoch."
    )
    return None if exists else Diagnosis("resume-lost", (), text, guide=GUIDE)


def file_not_updated(exists: bool, updated: bool) -> Diagnosis | None:
    """Recognise a training run of 4 epochs that writes its file only at the end, or never."""
    if not exists or updated:
        return file_missing(exists)
    text = (
        "In a training run of 4 epochs with `resume_from`, the file at that path does not change "
        "until the last epoch is over. If the machine fails earlier, all epochs are lost. Save the "
        "state there at least once in each epoch."
    )
    return Diagnosis("resume-lost", (), text, guide=GUIDE)


def file_harmed(gone: bool, same: bool) -> Diagnosis | None:
    """Recognise an old file that was deleted before the new one was complete, or lost."""
    if gone:
        text = (
            "train deletes or empties the old file of `resume_from` before the new one replaces "
            "it. If it is killed in between, there is no file to resume from. Complete the new "
            "file first, and then replace the old one in one atomic step."
        )
        return Diagnosis("not-atomic", (0,), text, guide=GUIDE)
    if same:
        return None
    text = (
        "Writing the file of `resume_from` failed halfway, as on a full disk, and the file of the "
        "previous epoch is lost, so there is no file to resume from. Keep the old file until the "
        "new one is complete."
    )
    return Diagnosis("not-atomic", (0,), text, guide=GUIDE)


def code_run(kept: bool, ran: bool) -> Diagnosis | None:
    """Recognise a training run that runs the code in its file, or that writes none."""
    if not kept or not ran:
        return file_missing(kept)
    text = (
        "train ran code from the file of `resume_from`. A file from another source could do "
        "anything. Load it with weights_only=True."
    )
    return Diagnosis("unsafe-load", (0,), text, guide=GUIDE)


def interrupted_wrongly(seen: Run, *, share: int, epochs: int) -> Diagnosis | None:
    """Recognise an interrupted and resumed training run that differs from one without interruption.

    Args:
        seen: by rank, the `whole` training run, the `first` one, which was interrupted, the
            `second` one, which resumed it, and the `content` of the file in between (see
            `support.probes.resuming`). Each step uses one sample of a rank.
        share: the samples of a rank in an epoch.
        epochs: the number of epochs.
    """
    whole, second = seen[0]["whole"], [value["second"] for value in seen]
    if found := _other_shares(seen, share, epochs) or _no_file(seen):
        return found
    if not all(close(one["params"], whole["params"]) for one in second):
        before = len(seen[0]["first"]["trained"])
        return beyond_epochs(second, epochs) or resumed_wrongly(
            [value["whole"] for value in seen], second, before
        )
    if not close(second[0]["center"], whole["center"]):
        text = (
            "The weights equal those of a training run without interruption, but a buffer of the "
            "model differs. Save the model's buffers too."
        )
        return Diagnosis("state-lost", (), text, guide=GUIDE)
    epoch, steps = place_of(second, share, epochs)
    if found := _other_history(second, whole["history"], epoch, steps, epochs):
        return found
    if not steps:
        return None
    return other_resumed_loss(second, whole["history"][epoch]["train_loss"], share - steps)


def place_of(second: Run, share: int, epochs: int) -> tuple[int, int]:
    """Return the epoch that a second call resumed, and a rank's earlier samples in that epoch."""
    return divmod(epochs * share - len(second[0]["trained"]), share)


def _other_shares(seen: Run, share: int, epochs: int) -> Diagnosis | None:
    """Recognise ranks that do not use each sample of their share once in each epoch."""
    trained = [value["whole"]["trained"] for value in seen]
    size, samples = len(seen), share * len(seen)
    if size > 1 and len(trained[0]) == epochs * samples:
        text = (
            f"In {epochs} epochs, each of {size} ranks trains on {len(trained[0])} samples, with a "
            f"dataset of {samples}. Each rank must train on only its own share."
        )
        return Diagnosis("same-shard-on-every-rank", tuple(range(size)), text, guide=GUIDE)
    found = other_epochs(trained, epochs, samples, GUIDE)
    if found is None and size == 2:
        first = [own[:share] for own in trained]
        found = other_shares(first, len(trained[0]) // epochs, samples, GUIDE)
    return found


def _no_file(seen: Run) -> Diagnosis | None:
    if all(value["content"] for value in seen):
        return None
    text = (
        "A training run with `resume_from` was interrupted in its second epoch, and there is no "
        "file at that path. Save the state there at least once in each epoch."
    )
    return Diagnosis("resume-lost", (), text, guide=GUIDE)


def _other_history(
    second: Run, whole: Sequence[Mapping[str, float]], epoch: int, steps: int, epochs: int
) -> Diagnosis | None:
    """Recognise a history without exactly the epochs that the call completed, or wrong numbers."""
    returned = [round(row["epoch"]) for row in second[0]["history"]]
    ended = [*range(epoch, epochs)]
    # The epoch before may be included if only its evaluation was missing.
    with_former = [epoch - 1, *ended] if steps == 0 else ended
    if returned not in (ended, with_former):
        text = (
            f"A call that resumed in epoch {epoch} (counted from 0) returns a history of the "
            f"epochs {returned}. The history must contain only the epochs that this call completed "
            f"({listed(ended)})."
        )
        return Diagnosis("wrong-signature", (), text, guide=GUIDE)
    for name in ("val_loss", "val_accuracy", "train_loss"):
        skip = int(name == "train_loss")  # in the resumed epoch, it may cover only a part
        numbers = [[row[name] for row in one["history"]][skip:] for one in second]
        right = [row[name] for row in whole[returned[0] + skip :]]
        if not all(close(own, right) for own in numbers):
            text = (
                f"After an interruption, `{name}` differs from its values in a training run "
                "without interruption, although the final weights are the same."
            )
            return Diagnosis("differs-from-single-process", (), text, guide=GUIDE)
    return None


def samples_to_resume(before: Run, share: int, epochs: int) -> tuple[int, set[int]]:
    """Return the epoch that a file resumes, and the samples that were used before in that epoch."""
    epoch, taken = place_of([value["second"] for value in before], share, epochs)
    own = [value["first"]["trained"][epoch * share :][:taken] for value in before]
    return epoch, {index for indices in own for index in indices}


def resumed_elsewhere_wrongly(
    seen: Run, *, samples: int, epoch: int, done: set[int], before: int, epochs: int
) -> Diagnosis | None:
    """Recognise a training run that resumes an epoch with a different number of ranks.

    Args:
        seen: by rank, the resumed training run.
        samples: the number of samples.
        epoch: the epoch that is resumed.
        done: the samples that were used before in that epoch.
        before: the number of ranks before.
        epochs: the number of epochs.
    """
    size, rest = len(seen), max(0, samples - len(done))  # what is left of this epoch
    left = -(-rest // size)  # samples of a rank in this epoch
    later = (epochs - epoch - 1) * -(-samples // size)
    drawn = [value["trained"] for value in seen]
    case = (
        f"After an interruption on {counted(before, 'rank')}, training resumes on "
        f"{counted(size, 'rank')}: each uses {len(drawn[0])} samples until the end of epoch "
        f"{epochs - 1}."
    )
    first = max(left, len(drawn[0]) - later)  # the samples that a rank used in this epoch
    missing = set(range(samples)) - done - {index for own in drawn for index in own[:first]}
    for holds, code, text in (
        (
            len(drawn[0]) != rest // size + later or rest % size == 0,
            "samples-missing",
            "The rest of the epoch seems to be cut to a multiple of the number of ranks. Pad it, "
            "so that no sample is left out.",
        ),
        (
            len(drawn[0]) >= left + later and not missing,
            "samples-missing",
            "Some of the remaining samples are missing. Save how many samples all ranks together "
            "have seen, because the number of ranks may change.",
        ),
        (
            all(len(own) == left + later for own in drawn),
            "samples-repeated",
            "According to the file, some of these samples were used before.",
        ),
        (
            all(close(value["params"], seen[0]["params"]) for value in seen),
            "models-differ",
            "The ranks end with different weights. They must stay equal.",
        ),
    ):
        if not holds:
            return Diagnosis(code, tuple(range(size)), f"{case} {text}", guide=GUIDE)
    return None


def repeated_epochs(calls: Sequence[Mapping[str, Any]]) -> Diagnosis | None:
    """Recognise calls that repeat finished epochs, or do not train the others.

    Args:
        calls: rank 0's training runs with epochs=1, 1, 2 and 2, in turn, with the same file.
    """
    first, _, more, _ = calls
    found = _done(1, calls[0], calls[1]) or _done(2, calls[2], calls[3])
    if found is not None:
        return found
    returned = [round(row["epoch"]) for row in more["history"]]
    if returned != [1] or not 0 < len(more["trained"]) <= len(first["trained"]):
        text = (
            "Called with epochs=2 and a file in which one epoch is done, train uses "
            f"{len(more['trained'])} samples per rank and returns a history of the epochs "
            f"{returned}. `epochs` includes the earlier epochs, so it must train only epoch 1."
        )
        return Diagnosis("resume-lost", (), text, guide=GUIDE)
    if more["trained"] != first["trained"]:
        return None
    text = (
        "Resumed from a file in which epoch 0 is done, epoch 1 uses the samples in the order of "
        "epoch 0. Set the sampler's epoch after loading the file."
    )
    return Diagnosis("epoch-not-set", (), text, guide=GUIDE)


def _done(epochs: int, ended: Mapping[str, Any], again: Mapping[str, Any]) -> Diagnosis | None:
    """Recognise a second call with the same number of epochs that trains."""
    for holds, code, text in (
        (
            again["trained"] == [],
            "samples-repeated",
            f"The second call trains on {len(again['trained'])} samples per rank, although all "
            "epochs are done. At the end of each epoch, even the last one, save that it is done.",
        ),
        (
            again["history"] == [],
            "samples-repeated",
            "The second call does not train, but returns a history. Save for each epoch that it is "
            "done, and return only the epochs that this call completed.",
        ),
        (
            close(again["params"], ended["params"]),
            "resume-lost",
            "After the second call, the model does not have the weights in the file.",
        ),
    ):
        if not holds:
            case = f"train was called twice with epochs={epochs}."
            return Diagnosis(code, (), f"{case} {text}", guide=GUIDE)
    return None
