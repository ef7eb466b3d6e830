"""The sharded optimizer: its steps, and how much state each rank keeps."""

from gradsync.testing import assert_on_every_rank, each, exercise, raise_mistake
from support.probes.sharding import drive, make_params, probe_drive
from support.rules.sharding import missing_defaults, not_sharded, step_mistakes, used_up

SHAPES = [(6, 5), (2,), (4, 4, 2), (1,), (3, 9)]
ADAM = {"name": "Adam", "options": {"lr": 0.1, "betas": (0.8, 0.95)}}
PLAIN = {**ADAM, "shapes": SHAPES, "groups": [{"members": [0, 1, 2, 3, 4]}]}
GROUPS = {
    "name": "SGD",
    "options": {"lr": 0.1, "momentum": 0.9},
    "shapes": SHAPES,
    "groups": [  # the second one has a single parameter, so other ranks own nothing of it
        {"members": [0], "lr": 0.03},
        {"members": [1], "lr": 0.2},
        {"members": [4, 3, 2], "weight_decay": 0.3},
    ],
}


OWN_SETTINGS = "Give the inner optimizer the settings of each group."


def draw(rng, shapes, steps=3):
    """Return gradients (step, parameter), each of a different scale."""
    return [[rng.standard_normal(s) * rng.uniform(0.2, 5) for s in shapes] for _ in range(steps)]


def check_drive(seen, case, grads, what, advice=""):
    """Check the parameters after every step, and that no rank keeps the state of all parameters."""
    before = [param.detach() for param in make_params(case)]
    alone = drive(case, grads)
    assert_on_every_rank(
        each(seen, lambda value: value["after"]),
        alone["after"],
        mistakes=step_mistakes(before, what, advice),
    )
    raise_mistake(not_sharded([value["kept"] for value in seen], alone["kept"]))


@exercise("phase2/ShardedOptimizer", points=2)
def test_steps_equal_the_unsharded_optimizers(ranks, rng):
    """After each step, every rank has the parameters of the same optimizer without sharding."""
    for world_size, where in ((4, "on 4 ranks"), (1, "on a single rank")):
        grads = draw(rng, SHAPES)

        seen = ranks(probe_drive, world_size, case=PLAIN, grads=grads)

        check_drive(seen, PLAIN, grads, f"With Adam and one parameter group {where}")


@exercise("phase2/ShardedOptimizer", points=0.5)
def test_parameters_of_several_dtypes(ranks, rng):
    """Parameters of float32 and float64, passed as an iterator, are stepped in their own dtype."""
    case = {**PLAIN, "mixed": True, "iterator": True}
    grads = draw(rng, SHAPES)

    seen = ranks(probe_drive, 2, case=case, grads=grads, mistakes=[used_up])

    check_drive(seen, case, grads, "With float32 and float64 parameters from an iterator")


@exercise("phase2/ShardedOptimizer", points=1)
def test_more_ranks_than_parameters(ranks, rng):
    """With fewer parameters than ranks, steps are correct, and each group keeps its settings."""
    groups = [{"members": [0], "lr": 0.02}, {"members": [1], "lr": 0.2, "betas": (0.5, 0.9)}]
    case = {**PLAIN, "shapes": [(3, 2), (4,)], "groups": groups}
    grads = draw(rng, case["shapes"], steps=2)

    seen = ranks(probe_drive, 3, case=case, grads=grads)

    what = "With 2 parameters in 2 groups with different settings, on 3 ranks"
    check_drive(seen, case, grads, what, OWN_SETTINGS)


@exercise("phase2/ShardedOptimizer", points=1.5)
def test_groups_keep_their_own_settings(ranks, rng):
    """Each parameter is stepped with the settings of its group, whichever rank owns it."""
    grads = draw(rng, SHAPES)

    seen = ranks(probe_drive, 2, case=GROUPS, grads=grads)

    what = "With SGD with momentum and three groups with different settings"
    check_drive(seen, GROUPS, grads, what, OWN_SETTINGS)


@exercise("phase2/ShardedOptimizer", points=1)
def test_a_scheduler_sets_the_learning_rate(ranks, rng):
    """The next step uses the learning rates and momentum that a scheduler sets for each group."""
    case = {**GROUPS, "cycle": {"max_lr": [0.3, 0.05, 0.15], "total_steps": 6}}
    grads = draw(rng, SHAPES)

    seen = ranks(probe_drive, 2, case=case, grads=grads, mistakes=[missing_defaults])

    what = "With OneCycleLR, which sets the groups' learning rates and momentum"
    check_drive(seen, case, grads, what)


@exercise("phase2/ShardedOptimizer", points=1)
def test_a_group_may_be_added_later(ranks, rng):
    """A group added between steps is stepped from then on, and the others continue unchanged."""
    late = {"members": [1, 4], "lr": 0.02, "betas": (0.5, 0.9)}
    case = {**PLAIN, "groups": [{"members": [0, 2, 3]}], "late": late, "late_at": 2}
    grads = draw(rng, SHAPES, steps=4)

    seen = ranks(probe_drive, 2, case=case, grads=grads)

    check_drive(seen, case, grads, "With a group added by add_param_group after two steps")


@exercise("phase2/ShardedOptimizer", points=0.5)
def test_parameters_without_a_gradient_do_not_change(ranks, rng):
    """A parameter whose gradient is None in a step does not change, nor does its state."""
    grads = draw(rng, SHAPES)
    for step, index in [(0, 0), (0, 3), (1, 1), (2, 0), (2, 2), (2, 4)]:
        grads[step][index] = None

    seen = ranks(probe_drive, 2, case=GROUPS, grads=grads)

    check_drive(seen, GROUPS, grads, "With some parameters without a gradient in some steps")
