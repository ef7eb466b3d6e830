"""Training that is interrupted and resumed from its file."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from gradsync.testing import check, each, exercise, raise_mistake
from gradsync.testing.values import close
from gradsync.text import counted, listed
from support.probes import Info
from support.probes.optimizers import optimizer_states
from support.probes.printing import printed
from support.probes.seeding import seed_weights
from support.probes.training import TIME_TO_END, rows_of
from support.rules.epochs import other_epochs, other_shares
from support.rules.resuming import beyond_epochs, other_resumed_loss, resumed_wrongly

GUIDE = "Resuming"
# Samples of a rank, in batches of one: a run that saves every 20 steps resumes in mid-epoch.
SHARE, EPOCHS = 11, 3  # without padding, which is not the same for the rest of an epoch
FILE = "progress.pt"
# For a run in which train raises: it may search for lost ranks.
LIMIT = {"timeout": 20 + TIME_TO_END, "promised": True}


class Net(nn.Module):
    """Records its samples, changes a buffer, and raises Interruption at the sample `stop_at`."""

    def __init__(self, seed, stop_at=None):
        super().__init__()
        self.stop_at = stop_at
        seed_weights(seed)
        self.layer = nn.Linear(4, 3).double()
        self.register_buffer("center", torch.rand(4, dtype=torch.float64))
        self.weights, self.trained = [], []  # before each step; the first number of each sample
        self.outputs = []  # only in training

    def forward(self, inputs):
        if self.training:
            if len(self.trained) == self.stop_at:
                raise Interruption
            self.trained += inputs[:, 0].tolist()
            self.weights.append(self.layer.weight.detach().clone())
            self.center *= 0.99  # like a running mean, but equal on every rank
            outputs = self.layer(inputs)
            self.outputs += outputs.detach().clone()
            return outputs
        return self.layer(inputs - self.center)


class Interruption(Exception):  # noqa: N818 - it stands for an event, not for an error
    """The training was interrupted."""


def run_training(trainer, info, seed, data, path, *, epochs, batch_size=1, stop_at=None):
    """Call `train` with a new model; return a description, even if it is interrupted."""
    model, history = Net(seed, stop_at), []
    sets = [TensorDataset(torch.from_numpy(x), torch.from_numpy(y)) for x, y in data]
    options = {"epochs": epochs, "batch_size": batch_size, "lr": 0.1, "resume_from": path}
    with printed(), optimizer_states() as states, contextlib.suppress(Interruption):
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
        "states": states,
        "losses": [
            float(nn.functional.cross_entropy(output, target))
            for output, target in zip(model.outputs, targets, strict=True)
        ],
        "history": rows_of(history),
    }


def draw(rng, samples):
    """Return training samples and validation samples."""
    return [(rng.standard_normal((n, 4)), rng.integers(0, 3, n)) for n in (samples, 5)]


def probe_interrupted(rank, world_size, trainer, data, stop_at, *, undisturbed=True, **options):
    """Train without interruption, with one, and resumed after it, each with a new model."""
    info = Info(rank, world_size)
    whole = run_training(trainer, info, 1, data, None, **options) if undisturbed else None
    first = run_training(trainer, info, 1, data, FILE, stop_at=stop_at, **options)
    content = Path(FILE).read_bytes() if Path(FILE).exists() else None
    second = run_training(trainer, info, 2, data, Path(FILE), **options) if content else None
    return {"whole": whole, "first": first, "second": second, "content": content}


@pytest.mark.parametrize("world_size", [2, 1])
@exercise("phase2/train", points=1.5)
def test_an_interrupted_training_ends_like_one_without_interruption(ranks, rng, world_size):
    """A run that is interrupted and resumed ends with the same weights, with momentum too."""
    options = {"data": draw(rng, SHARE * world_size), "epochs": EPOCHS}

    seen = ranks(probe_interrupted, world_size, **options, stop_at=2 * SHARE - 1, **LIMIT)

    check_shares(seen)
    check_file(seen)
    second, whole = each(seen, lambda value: value["second"]), seen[0]["whole"]
    if not all(close(one["params"], whole["params"]) for one in second):
        before = len(seen[0]["first"]["trained"])
        raise_mistake(beyond_epochs(second, EPOCHS))
        raise_mistake(resumed_wrongly([value["whole"] for value in seen], list(second), before))
    check_that(
        close(second[0]["center"], whole["center"]),
        "state-lost",
        "The weights equal those of a training run without interruption, but a buffer of the model "
        "differs. Save the model's buffers too.",
    )
    epoch, steps = start_of(seen, SHARE, EPOCHS)
    check_history(second, whole["history"], epoch, steps)
    if steps:
        whole_loss = whole["history"][epoch]["train_loss"]
        raise_mistake(other_resumed_loss(second, whole_loss, SHARE - steps))


def check_that(holds, code, text, ranks=()):
    check(holds, code, text, ranks=ranks, guide=GUIDE)


def check_shares(seen):
    """Check that training uses each sample once in each epoch, and trains for all epochs."""
    trained = each(seen, lambda value: value["whole"]["trained"])
    samples = SHARE * len(seen)
    check_that(
        len(seen) == 1 or len(trained[0]) != EPOCHS * samples,
        "same-shard-on-every-rank",
        f"In {EPOCHS} epochs, each of {len(seen)} ranks trains on {len(trained[0])} samples, with "
        f"a dataset of {samples}. Each rank must train on only its own share.",
        range(len(seen)),
    )
    found = other_epochs(trained, EPOCHS, samples, GUIDE)
    if len(seen) == 2:
        first = [own[:SHARE] for own in trained]
        found = found or other_shares(first, len(trained[0]) // EPOCHS, samples, GUIDE)
    raise_mistake(found)


def check_file(seen):
    """Check that an interrupted training run left a file."""
    check_that(
        all(value["content"] for value in seen),
        "resume-lost",
        "A training run with `resume_from` was interrupted in its second epoch, and there is no "
        "file at that path. Save the state there at least once in each epoch.",
    )


def start_of(seen, share, epochs):
    """Return the epoch that the second call resumed, and a rank's earlier samples in that epoch."""
    return divmod(epochs * share - len(seen[0]["second"]["trained"]), share)


def check_history(second, whole, epoch, steps):
    """Check that the history of the second call contains the epochs that this call completed."""
    returned = [round(row["epoch"]) for row in second[0]["history"]]
    ended = [*range(epoch, EPOCHS)]
    # The epoch before may be included if only its evaluation was missing.
    with_former = [epoch - 1, *ended] if steps == 0 else ended
    check_that(
        returned in (ended, with_former),
        "wrong-signature",
        f"A call that resumed in epoch {epoch} (counted from 0) returns a history of the epochs "
        f"{returned}. The history must contain only the epochs that this call completed "
        f"({listed(ended)}).",
    )
    for name in ("val_loss", "val_accuracy", "train_loss"):
        skip = int(name == "train_loss")  # in the resumed epoch, it may cover only a part
        numbers = [[row[name] for row in one["history"]][skip:] for one in second]
        right = [row[name] for row in whole[returned[0] + skip :]]
        check_that(
            all(close(own, right) for own in numbers),
            "differs-from-single-process",
            f"After an interruption, `{name}` differs from its values in a training run without "
            "interruption, although the final weights are the same.",
        )


def check_done(epochs, ended, again):
    """Check that a second call with the same number of epochs does not train."""
    case = f"train was called twice with epochs={epochs}"
    check_that(
        again["trained"] == [],
        "samples-repeated",
        f"{case}. The second call trains on {len(again['trained'])} samples per rank, although all "
        "epochs are done. At the end of each epoch, even the last one, save that it is done.",
    )
    check_that(
        again["history"] == [],
        "samples-repeated",
        f"{case}. The second call does not train, but returns a history. Save for each epoch that "
        "it is done, and return only the epochs that this call completed.",
    )
    check_that(
        close(again["params"], ended["params"]),
        "resume-lost",
        f"{case}. After the second call, the model does not have the weights in the file.",
    )


def probe_resumed(rank, world_size, trainer, data, content, **options):
    """Resume from a file of a training run with a different number of ranks."""
    part = Path(f"{rank}.part")
    part.write_bytes(content)
    part.replace(FILE)  # each rank writes the same content
    return run_training(trainer, Info(rank, world_size), 2, data, FILE, **options)


@exercise("phase2/train", points=0.75)
def test_it_resumes_with_another_number_of_ranks(ranks, rng):
    """With more or fewer ranks than before, all remaining samples of the epoch are used."""
    samples, share = 72, 36  # steps of 2 ranks, after which the rest seldom divides by 3 ranks
    options = {"data": draw(rng, samples), "batch_size": 3}
    until = {"stop_at": share + 27, "epochs": 2, "undisturbed": False}
    before = ranks(probe_interrupted, 2, **options, **until, **LIMIT)
    check_file(before)
    epoch, taken = start_of(before, share, 2)  # according to the file
    done = {i for v in before for i in v["first"]["trained"][epoch * share :][:taken]}
    rest = max(0, samples - 2 * taken)  # in this epoch

    options["content"] = before[0]["content"]
    for world_size, epochs in ((3, 3), (1, 2)):
        seen = ranks(probe_resumed, world_size, **options, epochs=epochs)

        left = -(-rest // world_size)  # samples of a rank in this epoch
        later = (epochs - epoch - 1) * -(-samples // world_size)
        drawn = [value["trained"] for value in seen]
        case = (
            f"After an interruption on 2 ranks, training resumes on {counted(world_size, 'rank')}: "
            f"each uses {len(drawn[0])} samples until the end of epoch {epochs - 1}."
        )
        check_that(
            len(drawn[0]) != rest // world_size + later or rest % world_size == 0,
            "samples-missing",
            f"{case} The rest of the epoch seems to be cut to a multiple of the number of ranks. "
            "Pad it, so that no sample is left out.",
            range(world_size),
        )
        first = max(left, len(drawn[0]) - later)  # the samples that a rank used in this epoch
        missing = set(range(samples)) - done - {i for own in drawn for i in own[:first]}
        check_that(
            len(drawn[0]) >= left + later and not missing,
            "samples-missing",
            f"{case} Some of the remaining samples are missing. Save how many samples all ranks "
            "together have seen, because the number of ranks may change.",
            range(world_size),
        )
        check_that(
            all(len(own) == left + later for own in drawn),
            "samples-repeated",
            f"{case} According to the file, some of these samples were used before.",
            range(world_size),
        )
        check_that(
            all(close(value["params"], seen[0]["params"]) for value in seen),
            "models-differ",
            f"{case} The ranks end with different weights. They must stay equal.",
            range(world_size),
        )


@exercise("phase2/train", points=0.5)
def test_finished_epochs_are_not_repeated(ranks, rng):
    """A second call trains only the epochs that are not done, or none if all are done."""

    def probe(rank, world_size, trainer, data):
        info = Info(rank, world_size)
        return [
            run_training(trainer, info, n, data, FILE, epochs=epochs, batch_size=6)
            for n, epochs in enumerate((1, 1, 2, 2, 3, 3))
        ]

    seen = ranks(probe, 2, data=draw(rng, 24))

    first, _, more, *_ = calls = seen[0]
    for n in range(3):
        check_done(n + 1, *calls[2 * n : 2 * n + 2])
    epochs = [round(row["epoch"]) for row in more["history"]]
    check_that(
        epochs == [1] and 0 < len(more["trained"]) <= len(first["trained"]),
        "resume-lost",
        "Called with epochs=2 and a file in which one epoch is done, train uses "
        f"{len(more['trained'])} samples per rank and returns a history of the epochs {epochs}. "
        "`epochs` includes the earlier epochs, so it must train only epoch 1.",
    )
    check_that(
        not np.array_equal(more["trained"], first["trained"]),
        "epoch-not-set",
        "Resumed from a file in which epoch 0 is done, epoch 1 uses the samples in the order of "
        "epoch 0. Set the sampler's epoch after loading the file.",
    )
