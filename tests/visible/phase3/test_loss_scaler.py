"""Visible tests of the loss scaler: two ranks, a weight and a bias, the default scale."""

import torch

from gradsync.testing import check, exercise
from gradsync.text import ranks_text

GUIDE = "Half precision"


def probe(rank, trainer, flaws):
    """Take a step for each flaw, a factor of rank 1's gradient of the bias; return each step.

    A new scaler with the final state takes one more step; return the scale after that, too.
    """
    model = torch.nn.Linear(1, 1)
    scaler = trainer.LossScaler(growth_interval=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def take(scaler, flaw):
        scale = float(scaler.scale(torch.ones(())))
        before = [p.item() for p in model.parameters()]
        model.weight.grad = torch.full((1, 1), scale)
        model.bias.grad = torch.full((1,), scale * (flaw if rank == 1 else 1.0))
        stepped = scaler.step(optimizer, model)
        moved = [b - p.item() for b, p in zip(before, model.parameters(), strict=True)]
        return [scale, bool(stepped), round(max(moved), 4)]

    seen = [take(scaler, flaw) for flaw in flaws]
    copy = trainer.LossScaler(init_scale=2.0, growth_interval=2)
    copy.load_state_dict(scaler.state_dict())
    take(copy, 1.0)
    return [seen, float(copy.scale(torch.ones(())))]


@exercise("phase3/LossScaler", points=1)
def test_a_step_removes_the_scale(ranks):
    """A gradient of 1 times 65536 moves weight and bias by 1; after 2 steps the scale is 131072.

    After 4 steps it is 262144. A scaler that gets the state after 5 steps doubles it in its first.
    """
    seen = ranks(probe, 2, flaws=[1.0] * 5)

    for steps, copied in seen:
        check(
            [step[2] for step in steps] == [1.0] * 5 and all(step[1] for step in steps),
            "scale-not-removed",
            f"Five steps with gradients of 1, times the scale, move weight and bias by up to "
            f"{[step[2] for step in steps]} and return {[step[1] for step in steps]}. Each must "
            "move it by 1 and return True.",
            guide=GUIDE,
        )
        check(
            [step[0] for step in steps] == [65536.0, 65536.0, 131072.0, 131072.0, 262144.0],
            "scale-not-updated",
            f"With growth_interval=2, the scales are {[step[0] for step in steps]}, but should be "
            "[65536, 65536, 131072, 131072, 262144]: it doubles after every 2 steps.",
            guide=GUIDE,
        )
        check(
            copied == 524288.0,
            "state-lost",
            f"A new scaler with this one's state, 262144 and one step of 2, has the scale {copied} "
            "after its first step, not 524288. The state has both numbers.",
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
