"""Training that was interrupted, and goes on from its file."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from gradsync.diagnose.epochs import other_epochs, other_shares
from gradsync.diagnose.resuming import beyond_epochs, other_resumed_loss, resumed_wrongly
from gradsync.diagnose.values import close
from gradsync.probes import Info
from gradsync.probes.printing import printed
from gradsync.probes.seeding import seed_weights
from gradsync.probes.training import TIME_TO_END, rows_of
from gradsync.testing import check, each, exercise, hold

GUIDE = "Resuming"
# Of a rank, in batches of one: who writes the file every 20 steps, say, goes on in mid-epoch. No
# padding there, which is other samples in what is left of an epoch than in a whole one.
SHARE, EPOCHS = 11, 3
FILE = "progress.pt"
LIMIT = 20 + TIME_TO_END  # seconds for a run in which train raises: it may look for lost ranks


class Net(nn.Module):
    """A classifier of float64 with a buffer that training moves; notes what it is trained on.

    It is interrupted before the sample of that number.
    """

    def __init__(self, seed, stop_at=None):
        super().__init__()
        self.stop_at = stop_at
        seed_weights(seed)
        self.layer = nn.Linear(4, 3).double()
        self.register_buffer("center", torch.rand(4, dtype=torch.float64))
        self.weights, self.trained = [], []  # at each step, and by the inputs' first numbers
        self.outputs = []  # of training

    def forward(self, inputs):
        if self.training:
            if len(self.trained) == self.stop_at:
                raise Interruption
            self.trained += inputs[:, 0].tolist()
            self.weights.append(self.layer.weight.detach().clone())
            self.center *= 0.99  # as a running mean is moved, but alike on every rank
            outputs = self.layer(inputs)
            self.outputs += outputs.detach().clone()
            return outputs
        return self.layer(inputs - self.center)


class Interruption(Exception):  # noqa: N818 - what ends a training from outside
    """The plug was pulled."""


def go(trainer, info, seed, data, path, *, epochs, batch_size=1, stop_at=None):
    """Call `train` with a model of its own; say what came of it, an interruption included."""
    model, history = Net(seed, stop_at), []
    sets = [TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in data]
    options = {"epochs": epochs, "batch_size": batch_size, "lr": 0.1, "resume_from": path}
    with printed(), contextlib.suppress(Interruption):
        history = trainer.train(info, model, *sets, **options)
    dist.barrier()  # rank 0 may still be writing
    numbers = {first: index for index, first in enumerate(data[0][0][:, 0].tolist())}
    trained = [numbers.get(first, -1) for first in model.trained]
    targets = torch.from_numpy(data[0][1])[trained]
    return {
        "params": {name: p.detach().clone() for name, p in model.named_parameters()},
        "center": model.center.clone(),
        "weights": torch.stack(model.weights) if model.weights else torch.zeros(0, 3, 4),
        "trained": trained,  # the samples, in order
        "losses": [
            float(nn.functional.cross_entropy(output, target))
            for output, target in zip(model.outputs, targets, strict=True)
        ],
        "history": rows_of(history),
    }


def draw(rng, samples):
    """Return samples to train on, and some to validate with."""
    return [(rng.standard_normal((n, 4)), rng.integers(0, 3, n)) for n in (samples, 5)]


def probe_interrupted(rank, world_size, trainer, data, stop_at, *, undisturbed=True, **options):
    """Train undisturbed, then interrupted, then go on from there, each with a fresh model."""
    info = Info(rank, world_size)
    whole = go(trainer, info, 1, data, None, **options) if undisturbed else None
    first = go(trainer, info, 1, data, FILE, stop_at=stop_at, **options)
    content = Path(FILE).read_bytes() if Path(FILE).exists() else None
    second = go(trainer, info, 2, data, Path(FILE), **options) if content else None
    return {"whole": whole, "first": first, "second": second, "content": content}


@pytest.mark.parametrize("world_size", [2, 1])
@exercise("phase2/train", points=1.25)
def test_an_interrupted_training_ends_as_if_undisturbed(ranks, rng, world_size):
    """Interrupted in mid-epoch and called again, it ends with the undisturbed run's weights."""
    options = {"data": draw(rng, SHARE * world_size), "epochs": EPOCHS}

    seen = ranks(probe_interrupted, world_size, **options, stop_at=2 * SHARE - 1, timeout=LIMIT)

    hold_shares(seen)
    hold_file(seen)
    second, whole = each(seen, lambda value: value["second"]), seen[0]["whole"]
    if not all(close(one["params"], whole["params"]) for one in second):
        before = len(seen[0]["first"]["trained"])
        hold(beyond_epochs(second, EPOCHS))
        hold(resumed_wrongly([value["whole"] for value in seen], list(second), before))
    check_that(
        close(second[0]["center"], whole["center"]),
        "state-lost",
        "the weights are those of an undisturbed training, but a buffer of the model is not: the "
        "file has to hold the model's buffers, too",
    )
    epoch, steps = start_of(seen, SHARE, EPOCHS)
    hold_history(second, whole["history"], epoch, steps)
    if steps:
        whole_loss = whole["history"][epoch]["train_loss"]
        hold(other_resumed_loss(second, whole_loss, SHARE - steps))


def check_that(holds, code, text, ranks=()):
    check(holds, code, f"{text}", ranks=ranks, guide=GUIDE)


def hold_shares(seen):
    """Check that training takes each sample once an epoch, in as many epochs as are asked for."""
    trained = each(seen, lambda value: value["whole"]["trained"])
    samples = SHARE * len(seen)
    check_that(
        len(seen) == 1 or len(trained[0]) != EPOCHS * samples,
        "same-shard-on-every-rank",
        f"in {EPOCHS} epochs each of {len(seen)} ranks is trained on {len(trained[0])} samples, of "
        f"a dataset of {samples}: each is to have its own share",
        range(len(seen)),
    )
    found = other_epochs(trained, EPOCHS, samples, GUIDE)
    if len(seen) == 2:
        first = [own[:SHARE] for own in trained]
        found = found or other_shares(first, len(trained[0]) // EPOCHS, samples, GUIDE)
    hold(found)


def hold_file(seen):
    """Check that an interrupted training left something to go on from."""
    check_that(
        all(value["content"] for value in seen),
        "resume-lost",
        "a training with `resume_from` was interrupted in its second epoch, and there is no file "
        "at that path: it has to be written at least once an epoch",
    )


def start_of(seen, share, epochs):
    """Return the epoch in which the second call went on, and a rank's samples before, of it."""
    return divmod(epochs * share - len(seen[0]["second"]["trained"]), share)


def hold_history(second, whole, epoch, steps):
    """Check that the history of the second call is that of the epochs which it ended."""
    told = [round(row["epoch"]) for row in second[0]["history"]]
    ended = [*range(epoch, EPOCHS)]
    check_that(
        told == ended or (told == [epoch - 1, *ended] and steps == 0),  # all but evaluated
        "wrong-signature",
        f"a call that went on in epoch {epoch} of {EPOCHS}, counted from 0, returns a history of "
        f"the epochs {told}: it is to be of those that this call ended",
    )
    for name in ("val_loss", "val_accuracy", "train_loss"):
        skip = int(name == "train_loss")  # of an epoch in two parts: not promised
        numbers = [[row[name] for row in one["history"]][skip:] for one in second]
        right = [row[name] for row in whole[told[0] + skip :]]
        check_that(
            all(close(own, right) for own in numbers),
            "differs-from-single-process",
            f"`{name}` after an interruption is not what an undisturbed training has for the same "
            "epochs, though the weights in the end are",
        )


def hold_done(epochs, ended, again):
    """Check that a call for as many epochs as the one before found nothing left to train."""
    told = f"called for {epochs} epochs, and then for as many again, it"
    check_that(
        again["trained"] == [],
        "samples-repeated",
        f"{told} takes {len(again['trained'])} samples a rank, where all are done. The file has to "
        "be written when an epoch ends, each and the last one too, and to say so",
    )
    check_that(
        again["history"] == [],
        "samples-repeated",
        f"{told} trains on nothing, but returns a history. The file has to say of each epoch that "
        "it is over, and the history is of those that this call ended",
    )
    check_that(
        close(again["params"], ended["params"]),
        "resume-lost",
        f"{told} leaves the model without the weights that the file holds",
    )


def probe_resumed(rank, world_size, trainer, data, content, **options):
    """Go on from a file that a training on another world size left."""
    part = Path(f"{rank}.part")
    part.write_bytes(content)
    part.replace(FILE)  # all ranks bring the same
    return go(trainer, Info(rank, world_size), 2, data, FILE, **options)


@exercise("phase2/train", points=0.75)
def test_it_goes_on_with_another_number_of_ranks(ranks, rng):
    """Each sample that is left of the epoch is trained on, on more ranks or fewer than before."""
    samples, share = 72, 36  # of so many steps of 2 ranks: seldom of whole steps of 3
    options = {"data": draw(rng, samples), "batch_size": 3}
    until = {"stop_at": share + 27, "epochs": 2, "undisturbed": False}
    before = ranks(probe_interrupted, 2, **options, **until, timeout=LIMIT)
    hold_file(before)
    epoch, taken = start_of(before, share, 2)  # as the file says
    done = {i for v in before for i in v["first"]["trained"][epoch * share :][:taken]}
    rest = max(0, samples - 2 * taken)  # of this epoch

    options["content"] = before[0]["content"]
    for world_size, epochs in ((3, 3), (1, 2)):
        seen = ranks(probe_resumed, world_size, **options, epochs=epochs)

        left = -(-rest // world_size)  # of a rank, in this epoch
        later = (epochs - epoch - 1) * -(-samples // world_size)
        drawn = [value["trained"] for value in seen]
        told = (
            f"on {world_size} ranks, after an interruption on 2, each rank takes {len(drawn[0])} "
            f"samples to the end of epoch {epochs - 1}"
        )
        check_that(
            len(drawn[0]) != rest // world_size + later or rest % world_size == 0,
            "samples-missing",
            f"{told}, as if what is left were cut to what divides evenly: it is to be padded, "
            "and no sample left out",
            range(world_size),
        )
        first = max(left, len(drawn[0]) - later)  # of what it takes in this epoch
        missing = set(range(samples)) - done - {i for own in drawn for i in own[:first]}
        check_that(
            len(drawn[0]) >= left + later and not missing,
            "samples-missing",
            f"{told}: not all that were left are among them. The file has to say how many samples "
            "all ranks together have seen, since their number may change",
            range(world_size),
        )
        check_that(
            all(len(own) == left + later for own in drawn),
            "samples-repeated",
            f"{told}: some were trained on before the interruption, and count as done in the file",
            range(world_size),
        )
        check_that(
            all(close(value["params"], seen[0]["params"]) for value in seen),
            "models-differ",
            f"{told}, and the ranks end with different weights",
            range(world_size),
        )


@exercise("phase2/train", points=0.5)
def test_what_is_done_is_not_done_again(ranks, rng):
    """Called again with all epochs done it trains nothing; with one more, that one alone."""

    def probe(rank, world_size, trainer, data):
        info = Info(rank, world_size)
        return [
            go(trainer, info, n, data, FILE, epochs=epochs, batch_size=6)
            for n, epochs in enumerate((1, 1, 2, 2, 3, 3))
        ]

    seen = ranks(probe, 2, data=draw(rng, 24))

    first, _, more, *_ = calls = seen[0]
    for n in range(3):
        hold_done(n + 1, *calls[2 * n : 2 * n + 2])
    epochs = [round(row["epoch"]) for row in more["history"]]
    check_that(
        epochs == [1] and 0 < len(more["trained"]) <= len(first["trained"]),
        "resume-lost",
        "called for 2 epochs with a file that says that one is done, it trains on "
        f"{len(more['trained'])} samples a rank and returns a history of the epochs {epochs}: "
        "`epochs` counts those before, too",
    )
    check_that(
        not np.array_equal(more["trained"], first["trained"]),
        "epoch-not-set",
        "after a file that says that epoch 0 is done, epoch 1 goes over the samples in the order "
        "of epoch 0",
    )
