"""Training in which a rank dies or is late: how it ends, and whether it can be resumed."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from gradsync.records import Diagnosis
from gradsync.testing import check, exercise, raise_mistake
from gradsync.testing.values import close
from gradsync.text import full_stop, ranks_text
from support.probes import Info
from support.probes.optimizers import optimizer_states
from support.probes.printing import printed
from support.probes.seeding import seed_weights
from support.probes.training import TIME_TO_END
from support.rules.resuming import resumed_wrongly

GUIDE = "When a rank dies"
RANKS, EPOCHS, STEPS = 3, 2, 5  # steps per epoch, in batches of one sample per rank
SAMPLES = RANKS * STEPS
FILE = "progress.pt"
GROUP_LIMIT = 4.0  # seconds that ranks wait for a late rank, at least in sends and receives
LATE_LIMIT = 0.2  # the same after all ranks have reached the step in which one is late
SHOWN = 200  # characters of an error
HAPPENED = {False: "was killed in the middle of training", True: "was later than the timeout"}
LIMIT = 2 * TIME_TO_END + 3 * GROUP_LIMIT  # seconds for a run: a late rank ends after the others


class Net(nn.Module):
    """A model that records its weights and samples at each step, and calls `fault` before one."""

    def __init__(self, seed, at, fault):
        super().__init__()
        seed_weights(seed)
        self.layer = nn.Linear(4, 3).double()
        self.weights, self.trained = [], []
        self.at, self.fault = at, fault

    def forward(self, inputs):
        if self.training:
            if len(self.trained) == self.at:
                self.fault()
            self.trained += inputs[:, 0].tolist()
            self.weights.append(self.layer.weight.detach().clone())
        return self.layer(inputs)


def run_training(train, info, data, path, *, seed=1, at=None, fault=None):
    """Call `train` with a new model; return a description of the training."""
    model = Net(seed, at, fault)
    sets = [TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in data]
    options = {"epochs": EPOCHS, "batch_size": 1, "lr": 0.1, "resume_from": path}
    with printed(), optimizer_states() as states:
        train(info, model, *sets, **options)
    numbers = {first: index for index, first in enumerate(data[0][0][:, 0].tolist())}
    return {
        "params": {name: p.detach().clone() for name, p in model.named_parameters()},
        "weights": torch.stack(model.weights) if model.weights else torch.zeros(0, 3, 4),
        "trained": [numbers.get(first, -1) for first in model.trained],  # the samples, in order
        "states": states,
    }


def draw(rng, first=0):
    """Return the inputs of a run that loses a rank (at least `first`) in its last epoch."""
    data = [(rng.standard_normal((n, 4)), rng.integers(0, 3, n)) for n in (SAMPLES, 5)]
    at = int(rng.integers(STEPS + 1, EPOCHS * STEPS))
    return {"data": data, "at": at, "lost": int(rng.integers(first, RANKS))}


def probe_fault(rank, world_size, trainer, data, at, lost, *, late):
    """Train with a file until a rank is lost; return how it ended, and the file's content."""
    limit = timedelta(seconds=GROUP_LIMIT)  # a limit set later is used for collectives only
    place = {"store": dist.FileStore("store", world_size), "rank": rank, "world_size": world_size}
    dist.init_process_group("gloo", timeout=limit, **place)

    def be_late():
        for group in list(dist.distributed_c10d._world.pg_map):  # also groups that train created
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=LATE_LIMIT), group)
        while rank == lost and len(list(Path().glob("ended-*"))) < world_size - 1:
            time.sleep(0.01)  # longer than any timeout of the other ranks

    def be_killed():
        if rank == lost:
            until = time.monotonic() + GROUP_LIMIT
            while time.monotonic() < until and len(list(Path().glob("reached-*"))) < world_size:
                time.sleep(0.01)  # until no other rank is in the previous step
            os.kill(process, signal.SIGKILL)

    def fault():
        reached.append(at)
        Path(f"reached-{rank}").touch()
        (be_late if late else be_killed)()

    process, train, messages, reached = os.getpid(), trainer.train, None, []
    try:
        run_training(train, Info(rank, world_size), data, FILE, at=at, fault=fault)
    except NotImplementedError:
        raise
    except BaseException as error:  # also SystemExit
        messages = messages_of(error)
    Path(f"ended-{rank}").touch()
    content = Path(FILE).read_bytes() if Path(FILE).exists() else None
    return {"messages": messages, "content": content, "reached": bool(reached)}


def messages_of(error):
    """Return the messages of an error and its causes; None for an exit that means success."""
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return None
    messages = []
    while error is not None:
        messages += [str(error), *getattr(error, "__notes__", [])]
        error = error.__cause__ or error.__context__
    return messages


def probe_again(rank, world_size, trainer, data, content, pause):
    """Train without a fault, except for a pause of one rank, and then resume from a file."""
    info, train = Info(rank, world_size), trainer.train

    def fault():
        time.sleep(pause * (rank == 1))

    whole = run_training(train, info, data, None, at=STEPS, fault=fault)
    part = Path(f"{rank}.part")
    part.write_bytes(content)
    part.replace(FILE)  # each rank writes the same content
    return {"whole": whole, "second": run_training(train, info, data, FILE, seed=2)}


@exercise("phase2/train", points=1.5)
def test_after_a_rank_is_killed_training_ends_and_can_be_resumed(ranks, rng):
    """If a rank is killed, the others end with an error, and a new run resumes correctly."""
    inputs = draw(rng, first=1)  # if rank 0 is killed while it writes, the file may be damaged

    seen = lose(ranks, inputs, late=False)

    check_ended(seen, inputs["lost"], HAPPENED[False])
    check_resumed(ranks, inputs, seen)


@exercise("phase2/train", points=1.5)
def test_a_rank_that_is_seconds_late_ends_training_and_a_short_delay_does_not(ranks, rng):
    """If a rank is later than the timeout, all end with an error; a short delay is accepted."""
    inputs = draw(rng)

    seen = lose(ranks, inputs, late=True)

    check_ended(seen, inputs["lost"], HAPPENED[True])
    check_resumed(ranks, inputs, seen, pause=0.15)


def lose(ranks, inputs, *, late):
    """Train until a rank is lost."""

    def hangs(seen, _):
        failure = seen.failure
        if failure is None or failure.status != "timeout":
            return None
        text = (
            f"Rank {lost} {HAPPENED[late]}. The other ranks must end with an error within "
            f"{TIME_TO_END:g} s. {failure.diagnosis.explanation}"
        )
        ranks, where = failure.diagnosis.ranks, failure.diagnosis.where
        return Diagnosis("hangs-after-a-fault", ranks, text, where, GUIDE)

    lost = inputs["lost"]
    limit = LIMIT if late else LIMIT - TIME_TO_END
    options = {"may_fail": [lost], "timeout": limit, "promised": True, "mistakes": [hangs]}
    return ranks(probe_fault, RANKS, process_group=False, **options, **inputs, late=late)


def check_that(holds, code, text, ranks=()):
    check(holds, code, text, ranks=ranks, guide=GUIDE)


def check_ended(seen, lost, what):
    """Check that every rank that is alive ended with an error, and only after the fault."""
    early = [rank for rank in seen.answered if not seen[rank]["reached"]]
    reason = next((text for rank in early for text in seen[rank]["messages"] or () if text), None)
    check_that(
        lost not in early,
        "exception" if reason else "samples-missing",
        f"Training ended on {ranks_text(early)} before rank {lost} was lost, in the second of "
        f"{EPOCHS} epochs. "
        + (full_stop(f"The error is: {reason[:SHOWN]}") if reason else "Steps are missing."),
        early,
    )
    calm = [rank for rank in seen.answered if seen[rank]["messages"] is None]
    check_that(
        not calm,
        "error-swallowed",
        f"Rank {lost} {what}, but train ended without an error on {ranks_text(calm)}, so the "
        "launcher regards the job as finished. Do not continue without a rank: end with an error.",
        calm,
    )


def check_resumed(ranks, inputs, seen, pause=0.0):
    """Check that a new run, resumed from the file, ends like a run without a fault."""
    content = seen[seen.answered[0]]["content"]
    check_that(
        content,
        "resume-lost",
        "Training ended in its second epoch, and there is no file at the path of `resume_from`. "
        "Save the state there at least once in each epoch.",
    )

    again = ranks(probe_again, RANKS, data=inputs["data"], content=content, pause=pause)

    whole = [value["whole"] for value in again]
    second = [value["second"] for value in again]
    if not all(close(one["params"], whole[0]["params"]) for one in second):
        raise_mistake(resumed_wrongly(whole, second, inputs["at"]))
    start = len(whole[0]["trained"]) - len(second[0]["trained"])
    taken = [w["trained"][:start] + s["trained"] for w, s in zip(whole, second, strict=True)]
    for epoch in range(EPOCHS):
        steps = slice(epoch * STEPS, (epoch + 1) * STEPS)
        check_that(
            sorted(sample for own in taken for sample in own[steps]) == list(range(SAMPLES)),
            "samples-repeated",
            f"The steps of epoch {epoch} before and after the interruption do not use each sample "
            "exactly once. Resume at the position in the file.",
            range(RANKS),
        )
