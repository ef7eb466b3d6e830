"""A complete training run on real data: a small CNN learns to read handwritten digits."""

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

from gradsync.data import digits
from gradsync.model import SmallCNN
from gradsync.testing import check, early, exercise, raise_mistake
from support.probes.ready_made import DDP, without
from support.rules.training import models_differ

GUIDE = "Training"
SAMPLES = 10_000  # for training, of MNIST's 60,000


def probe_digits(rank, world_size, trainer, known, unseen, batch_size, plan):
    """Train on the `known` digits; return the model's guesses for a part of the `unseen` ones."""
    torch.manual_seed(rank)
    model = SmallCNN()
    first = next(model.parameters())
    before = first.detach().clone()
    train_set = TensorDataset(torch.from_numpy(known[0]).float(), torch.from_numpy(known[1]))
    info = trainer.RankInfo(rank, world_size, 0, "127.0.0.1", 29500)
    val_set = Subset(train_set, range(200))
    with without(DDP):
        for epochs, lr in plan:
            options = {"epochs": epochs, "batch_size": batch_size, "lr": lr}
            trainer.train(info, model, train_set, val_set, **options)
    model.eval()
    images = torch.from_numpy(np.array_split(unseen, world_size)[rank]).float()
    with torch.no_grad():
        guesses = [model(some).argmax(1) for some in images.split(1000)]
    return {
        "guesses": torch.cat(guesses).to(torch.uint8),
        "moved": bool((first != before).any()),
        "weights": dict(model.named_parameters()),
        "buffers": [],
    }


@early
@exercise("phase1/train", points=5)
def test_the_model_learns_to_read_handwritten_digits(ranks):
    """The small CNN, trained on 2 gloo ranks, classifies enough held-out digits correctly."""
    data = digits(first=SAMPLES)
    known, unseen = data.train, data.test
    # A last epoch of small steps reduces the noise of a constant learning rate.
    # Right answers, with any order of the samples and with momentum, reach about 0.97. The goal is
    # so far below that no order misses it; the other tests compare weights exactly.
    if data.is_mnist:
        batch_size, plan, goal = 100, [(3, 0.4), (1, 0.05)], 0.9
    else:
        batch_size, plan, goal = 50, [(12, 0.2), (2, 0.05)], 0.85

    seen = ranks(
        probe_digits,
        2,
        # Half precision halves the data to send, and is enough for learning.
        known=(known.images.half().numpy(), known.labels.numpy()),
        unseen=unseen.images.half().numpy(),
        batch_size=batch_size,
        plan=plan,
        timeout=120.0,
    )

    check(
        any(value["moved"] for value in seen),
        "does-not-learn",
        "After training, every rank's model is exactly as it was before. Train the model itself, "
        "not a copy.",
        ranks=range(2),
        guide=GUIDE,
    )
    raise_mistake(models_differ(seen, GUIDE))
    guesses = np.concatenate([value["guesses"] for value in seen])
    accuracy = float(np.mean(guesses == unseen.labels.numpy()))
    check(
        accuracy >= goal,
        "does-not-learn",
        f"After {sum(epochs for epochs, _ in plan)} epochs on {len(known)} digits, the model "
        f"classifies {accuracy:.1%} of {len(unseen)} held-out digits correctly. It should reach at "
        f"least {goal:.0%}; one process reaches about 97%.",
        ranks=range(2),
        guide=GUIDE,
        vague=True,
    )
