"""Visible tests of the loss scaler: two ranks, a weight and a bias, the default scale."""

import torch

from gradsync.testing import check, exercise
from gradsync.text import ranks_text

GUIDE = "Half precision"


def probe(rank, trainer, flaws):
    """Take a step for each flaw, a factor of rank 1's gradient of the bias; return each step."""
    model = torch.nn.Linear(1, 1)
    scaler = trainer.LossScaler(growth_interval=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    seen = []
    for flaw in flaws:
        scale = float(scaler.scale(torch.ones(())))
        before = model.weight.item()
        model.weight.grad = torch.full((1, 1), scale)
        model.bias.grad = torch.full((1,), scale * (flaw if rank == 1 else 1.0))
        stepped = scaler.step(optimizer, model)
        seen.append([scale, bool(stepped), round(before - model.weight.item(), 4)])
    copy = trainer.LossScaler(init_scale=2.0)
    copy.load_state_dict(scaler.state_dict())
    return [seen, float(copy.scale(torch.ones(())))]


@exercise("phase3/LossScaler", points=1)
def test_a_step_removes_the_scale(ranks):
    """A gradient of 1 times 65536 moves a weight by 1; after 2 steps the scale is 131072."""
    seen = ranks(probe, 2, flaws=[1.0, 1.0, 1.0])

    for steps, copied in seen:
        check(
            [step[2] for step in steps] == [1.0] * 3 and all(step[1] for step in steps),
            "scale-not-removed",
            f"Three steps with gradients of 1, times the scale, move the weight by "
            f"{[step[2] for step in steps]} and return {[step[1] for step in steps]}. Each must "
            "move it by 1 and return True.",
            guide=GUIDE,
        )
        check(
            [step[0] for step in steps] == [65536.0, 65536.0, 131072.0],
            "scale-not-updated",
            f"With growth_interval=2, the scales are {[step[0] for step in steps]}, but should be "
            "[65536, 65536, 131072].",
            guide=GUIDE,
        )
        check(
            copied == 131072.0,
            "state-lost",
            f"A new scaler with the state of this one has the scale {copied}, not 131072.",
            guide=GUIDE,
        )


@exercise("phase3/LossScaler", points=1)
def test_an_infinity_on_one_rank_makes_both_skip(ranks):
    """A step, an infinity, a NaN on rank 1 alone, two steps: both skip and halve the scale twice.

    The steps before a skip don't count for growth_interval=2.
    """
    seen = ranks(probe, 2, flaws=[1.0, float("inf"), float("nan"), 1.0, 1.0])

    for step, flaw in enumerate(("infinite", "NaN"), 1):
        taken = [value[0][step] for value in seen]
        stepped = [rank for rank in range(2) if taken[rank][1] or taken[rank][2] != 0]
        check(
            not stepped,
            "skipped-on-one-rank" if len(stepped) == 1 else "infinity-missed",
            f"A gradient of rank 1 is {flaw}, but {ranks_text(stepped)} stepped. Both must skip.",
            ranks=stepped,
            guide=GUIDE,
        )
    scales = [[step[0] for step in value[0]] for value in seen]
    check(
        scales == [[65536.0, 65536.0, 32768.0, 16384.0, 16384.0]] * 2,
        "scale-differs" if scales[0] != scales[1] else "scale-not-updated",
        f"With skips at the second and third step, the scales before each step are {scales} by "
        "rank, but should be [65536, 65536, 32768, 16384, 16384] on both.",
        guide=GUIDE,
    )
