"""The visible tests of an epoch and of the evaluation, for `gradsync check`."""

import torch
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

from gradsync.testing import assert_on_every_rank, check, each, exercise, raise_mistake
from support.probes.evaluation import numbers
from support.probes.returned import call_with_line, float_returned
from support.rules.epochs import other_batches
from support.rules.evaluation import other_keys, predicts_otherwise
from support.rules.means import left_the_loop, mean_of_ranks
from support.rules.wrong_results import ends_with

GUIDE = "Epochs and evaluation"


def one_weight(value):
    """Return the model `output = weight * input`."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


class EpochSampler(SequentialSampler):
    """Yields the samples in order, and records the epochs that are set."""

    def __init__(self, dataset):
        super().__init__(dataset)
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


@exercise("phase1/train_epoch", points=1)
def test_the_epoch_of_the_sampler_is_set(ranks):
    """In epoch 3, train_epoch sets the epoch of the loader's sampler to 3."""

    def probe(trainer):
        data = TensorDataset(torch.ones(4, 1), torch.ones(4, 1))
        loader = DataLoader(data, batch_size=2, sampler=EpochSampler(data))
        model = one_weight(0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer.train_epoch(model, loader, nn.MSELoss(), optimizer, epoch=3)
        return loader.sampler.epochs

    [epochs] = ranks(probe, world_size=1)

    check(
        3 in epochs,
        "epoch-not-set",
        f"train_epoch for epoch 3 {f'set the epochs {epochs}' if epochs else 'set no epoch'} in "
        "the sampler. Without `set_epoch(3)`, the sampler repeats the same order in every epoch.",
        guide=GUIDE,
    )


@exercise("phase1/train_epoch", points=1)
def test_a_smaller_batch_counts_less(ranks):
    """Batches of losses 1, 1 | 4 on rank 0 and 4, 4 | 16 on rank 1 have the mean 30 / 6 = 5."""

    def probe(rank, trainer):
        batches = []
        targets = [[1.0], [1.0], [2.0]] if rank == 0 else [[2.0], [2.0], [4.0]]  # (sample, 1)
        loader = DataLoader(TensorDataset(torch.ones(3, 1), torch.tensor(targets)), batch_size=2)
        model = one_weight(0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # so a loss is the target squared
        model.register_forward_hook(lambda _model, inputs, _outputs: batches.append(inputs))
        loss, line = call_with_line(
            trainer.train_epoch, model, loader, nn.MSELoss(), optimizer, epoch=0
        )
        loss = float_returned(loss, "train_epoch")
        return {"loss": loss, "batches": len(batches), "line": line}

    seen = ranks(probe, world_size=2)

    batches, line = [value["batches"] for value in seen], seen[0]["line"]
    seen = each(seen, lambda value: value["loss"])
    assert_on_every_rank(
        seen,
        5.0,
        mistakes=[
            lambda _seen, _expected: other_batches(batches, 2, GUIDE, line),
            ends_with(
                [6.25, 6.25],
                "mean-of-means",
                "train_epoch returns 6.25, the mean of its batches' mean losses, where a batch of "
                "one sample counts as much as a batch of two. The mean over the samples is 5.",
                GUIDE,
                line=line,
            ),
            ends_with(
                [2.0, 8.0],
                "loss-is-local",
                "Each rank returns the mean loss of its own samples, 2 and 8. Both should return "
                "the mean over all samples, 5.",
                GUIDE,
                line=line,
            ),
        ],
        otherwise=f"the ranks return {list(seen)} from train_epoch. Both should return 5, the mean "
        "loss over the samples of both ranks",
    )


def scores_as_they_come():
    """Return a model that returns the two scores that it is given."""
    model = nn.Linear(2, 2, bias=False)
    nn.init.eye_(model.weight)
    return model


@exercise("phase1/evaluate", points=1)
def test_every_sample_counts_the_same(ranks):
    """Rank 0 has 3 samples of loss 1, rank 1 has one of loss 5: the mean is 2, not 3."""

    def probe(rank, trainer):
        first, second, wrong = [-1.0, -4.0], [-4.0, -1.0], [-5.0, -2.0]  # scores of classes 0, 1
        scores = torch.tensor([first, second, second] if rank == 0 else [wrong])  # (sample, class)
        data = TensorDataset(scores, torch.tensor([0, 1, 1] if rank == 0 else [0]))
        loader = DataLoader(data, batch_size=2)
        result, line = call_with_line(trainer.evaluate, scores_as_they_come(), loader, nn.NLLLoss())
        return {"numbers": numbers(result), "line": line}

    seen = ranks(probe, world_size=2)

    line = seen[0]["line"]
    seen = each(seen, lambda value: value["numbers"])
    raise_mistake(other_keys(seen, GUIDE))

    wanted = {"loss": 2.0, "accuracy": 0.75, "samples": 4}
    own = [
        {"loss": 1.0, "accuracy": 1.0, "samples": 3},
        {"loss": 5.0, "accuracy": 0.0, "samples": 1},
    ]
    assert_on_every_rank(
        seen,
        wanted,
        mistakes=[
            ends_with(
                own,
                "loss-is-local",
                f"Each rank returns the numbers of its own samples, {own[0]} and {own[1]}. Both "
                f"should return {wanted}.",
                GUIDE,
                line=line,
            ),
            mean_of_ranks(own, GUIDE),
            left_the_loop(4, GUIDE, line),
            predicts_otherwise(GUIDE),
        ],
        otherwise=f"the ranks return {list(seen)} from evaluate. Both should return {wanted}",
    )


@exercise("phase1/evaluate", points=1)
def test_the_evaluation_uses_evaluation_mode(ranks):
    """evaluate runs the model in evaluation mode, and restores training mode afterwards."""

    def probe(trainer):
        model = scores_as_they_come().train()
        modes = []
        model.register_forward_hook(lambda used, *_: modes.append(used.training))  # copies too
        data = TensorDataset(torch.ones(2, 2), torch.zeros(2, dtype=torch.long))
        trainer.evaluate(model, DataLoader(data, batch_size=1), nn.NLLLoss())
        return {"trained meanwhile": any(modes), "training afterwards": model.training}

    [seen] = ranks(probe, world_size=1)

    check(
        not seen["trained meanwhile"],
        "mode-not-restored",
        "evaluate runs the model in training mode, where dropout drops values and BatchNorm "
        "updates its statistics. Switch the model to evaluation mode.",
        guide=GUIDE,
    )
    check(
        seen["training afterwards"],
        "mode-not-restored",
        "The model was in training mode, and evaluate left it in evaluation mode. Restore the mode "
        "from before the call.",
        guide=GUIDE,
    )
