"""The loader of token sequences: which batches each rank gets, and how it resumes."""

import operator
import random
from functools import partial

import numpy as np
import torch

from gradsync.testing import check, exercise, raise_mistake
from support.probes import salt_hashes
from support.probes.token_loaders import batches_of, numbered
from support.rules.token_loaders import GUIDE, diagnose_batches, numbers_of

check_that = partial(check, guide=GUIDE)


def probe_epochs(data_loader, cases):
    """Return for each case the order of the epoch, and the batches of each rank."""
    seen = []
    for count, batch_size, world_size, seed, epoch in cases:
        every = []
        for size, ranks in ((1, 1), (batch_size, world_size)):
            for rank in range(ranks):
                loader = data_loader.TokenLoader(numbered(count), size, ranks, rank, seed=seed)
                loader.set_epoch(epoch)
                every.append(batches_of(loader))
        seen.append(every)
    return seen


def orders_of(every):
    return [numbers[0] for numbers in numbers_of(every)]


def probe_orders(rank, data_loader, count):
    """Return the orders of two loaders, and the global random states after them.

    Each rank begins with other states, and with other hashes.
    """
    salt_hashes(rank)
    for set_seed in (random.seed, np.random.seed, torch.manual_seed):
        set_seed(rank)
    loader = data_loader.TokenLoader(numbered(count), 1, 1, 0)
    orders = [[numbers[0] for numbers in numbers_of_(loader)]]
    for epoch in (0, 1, 2, 0):
        loader.set_epoch(epoch)
        orders.append([numbers[0] for numbers in numbers_of_(loader)])
    other = data_loader.TokenLoader(numbered(count), 1, 1, 0, seed=1)
    orders.append([numbers[0] for numbers in numbers_of_(other)])
    return [orders, [random.random(), float(np.random.rand()), float(torch.rand(()))]]


def numbers_of_(loader):
    return [[row[0] // 10 for row in inputs] for inputs, _ in batches_of(loader)]


@exercise("phase3/TokenLoader", points=1.5)
def test_the_order_depends_on_seed_and_epoch_alone(ranks, rng):
    """The same permutation in every process; another one for another epoch or seed."""
    count = int(rng.integers(20, 40))

    seen = ranks(probe_orders, 2, process_group=False, count=count)

    (orders, states), (others, other_states) = seen
    check_that(
        orders == others,
        "shuffle-differs-across-ranks",
        "Two processes with the same seed and epoch get different orders. The permutation must not "
        "depend on the rank, the global random state or on hashes.",
        range(2),
    )
    check_that(
        orders[0] != sorted(orders[0]),
        "not-shuffled",
        "The sequences come in order. Each epoch has a permutation.",
    )
    check_that(
        orders[0] == orders[1] == orders[4],
        "epoch-ignored",
        "A new loader, and the same one after set_epoch(0), yield different orders. A new loader "
        "is at epoch 0, and an epoch always has the same order.",
    )
    check_that(
        len({tuple(order) for order in orders[1:4]}) == 3,
        "epoch-ignored",
        "set_epoch does not change the order of the sequences. Every epoch needs another one.",
    )
    check_that(
        orders[5] != orders[0],
        "seed-ignored",
        "With another seed, the order is the same.",
    )
    check_that(
        all(map(operator.ne, states, other_states)),
        "global-rng-touched",
        "A pass over the loader seeds the global random state, so all else that is random, such as "
        "dropout, repeats itself in each epoch. Use a generator of your own.",
    )


@exercise("phase3/TokenLoader", points=2)
def test_ranks_take_strides_of_each_global_batch(ranks, rng):
    """Each rank takes every N-th position of each whole global batch; the rest is dropped."""
    seed = int(rng.integers(1000))
    cases = [
        (int(rng.integers(20, 40)), batch_size, world_size, seed, epoch)
        for batch_size, world_size, epoch in ((2, 2, 0), (3, 4, 1), (1, 3, 2), (5, 1, 0), (2, 3, 5))
    ]
    cases += [(24, 3, 2, seed, 0), (5, 3, 2, seed, 0)]  # no rest; not even one global batch

    [seen] = ranks(probe_epochs, 1, process_group=False, cases=cases)

    for (count, batch_size, world_size, _, epoch), (alone, *every) in zip(cases, seen, strict=True):
        case = f"{count} sequences in batches of 1 on 1 rank, epoch {epoch}"
        order = orders_of(alone)
        raise_mistake(diagnose_batches([alone], order, 1, case))
        check_that(
            sorted(order) == list(range(count)),
            "samples-missing" if set(range(count)) - set(order) else "samples-repeated",
            f"{case}: the loader yields {len(order)} sequences, {len(set(order))} of them "
            "different. Each sequence comes exactly once.",
        )
        ranks_are = f"{world_size} ranks" if world_size > 1 else "1 rank"
        case = f"{count} sequences in batches of {batch_size} on {ranks_are}, epoch {epoch}"
        raise_mistake(diagnose_batches(every, order, batch_size, case))


def probe_resumed(data_loader, cases):
    return [resumed(data_loader, *case) for case in cases]


def resumed(data_loader, count, seed, epoch, before, after, taken):
    """Stop after some batches, and go on with other numbers; return all that is yielded.

    `before` and `after` are (batch size, number of ranks). The state is taken in the loop's body.
    """

    def loaders(batch_size, world_size):
        return [
            data_loader.TokenLoader(numbered(count), batch_size, world_size, rank, seed=seed)
            for rank in range(world_size)
        ]

    [alone] = loaders(1, 1)
    alone.set_epoch(epoch)
    order = batches_of(alone)
    first, states = [], []
    for loader in loaders(*before):
        loader.set_epoch(epoch)
        own = []
        for number, batch in enumerate(loader, 1):
            own.append([part.tolist() for part in batch])
            if number == taken:
                states.append(loader.state_dict())
                break
        first.append(own)
    rest, later = [], []
    for rank, loader in enumerate(loaders(*after)):
        loader.load_state_dict(states[rank % len(states)])
        if rank % 2 == 0:
            loader.set_epoch(epoch)  # as a training loop does; it keeps the position
        rest.append(batches_of(loader))
        loader.set_epoch(epoch)
        later.append(batches_of(loader))
    return [order, first, rest, later]


def check_resumed(ranks, *cases):
    [found] = ranks(probe_resumed, 1, process_group=False, cases=cases)

    for one, case in zip(found, cases, strict=True):
        check_one(*one, *case)


def check_one(alone, first, rest, later, count, seed, epoch, before, after, taken):
    order = orders_of(alone)
    case = f"{count} sequences in batches of {before[0]} on {before[1]} ranks"
    raise_mistake(diagnose_batches(first, order[: taken * before[0] * before[1]], before[0], case))
    case += (
        f", stopped after {taken} batches and resumed in batches of {after[0]} on {after[1]} ranks"
    )
    raise_mistake(
        diagnose_batches(rest, order, after[0], case, start=taken * before[0] * before[1])
    )
    case += ", then a further pass over the same epoch"
    short = [rank for rank in range(after[1]) if len(later[rank]) < count // (after[0] * after[1])]
    check_that(
        not short,
        "samples-missing",
        f"{case}: ranks get only {len(later[short[0]]) if short else 0} batches. The loaded "
        "position applies to the next pass only; later passes are whole epochs.",
        short,
    )
    raise_mistake(diagnose_batches(later, order, after[0], case))


@exercise("phase3/TokenLoader", points=1.5)
def test_it_resumes_after_any_batch(ranks, rng):
    """After any batch, the rest of the epoch follows, without repetition; then whole epochs."""
    epoch = int(rng.integers(0, 5))

    check_resumed(ranks, (30, 3, epoch, (2, 3), (2, 3), int(rng.integers(1, 4))))


@exercise("phase3/TokenLoader", points=1.25)
def test_it_resumes_on_other_ranks_and_batch_sizes(ranks, rng):
    """The rest of the epoch is shared by other numbers of ranks, in batches of another size."""
    count, seed = int(rng.integers(40, 60)), int(rng.integers(100))

    cases = [
        (count, seed, int(rng.integers(0, 4)), before, after, 3)
        for before, after in (((2, 2), (1, 3)), ((2, 3), (3, 2)), ((1, 4), (2, 1)))
    ]
    # 12 have been used. Batches of 5 fit into all, but not into the rest.
    cases.append((5 * int(rng.integers(8, 12)), seed, 1, (2, 2), (5, 1), 3))

    check_resumed(ranks, *cases)


def probe_states(data_loader, count):
    """Return batches after states from before, in and after an epoch, and of another epoch."""

    def make():
        return data_loader.TokenLoader(numbered(count), 2, 1, 0, seed=5)

    fresh = make().state_dict()
    loader = make()
    whole = batches_of(loader)
    ended = loader.state_dict()
    seen = [whole]
    for state, epoch in ((fresh, 0), (ended, 1)):
        loader = make()
        loader.load_state_dict(state)
        loader.set_epoch(epoch)
        seen.append(batches_of(loader))
    loader = make()
    loader.load_state_dict(ended)
    loader.set_epoch(0)
    seen.append(batches_of(loader))
    loader.set_epoch(1)
    seen.append(batches_of(loader))
    started = make()
    kept = batches_of(started, 2)
    copied = make()
    copied.load_state_dict(started.state_dict())
    again = make()
    again.load_state_dict(copied.state_dict())  # saved again before the first batch
    return [*seen, kept, batches_of(again), batches_of(started)]


@exercise("phase3/TokenLoader", points=0.75)
def test_states_before_and_after_an_epoch(ranks, rng):
    """A state from before the first batch, from the end of an epoch, or just loaded is right."""
    [seen] = ranks(probe_states, 1, process_group=False, count=int(rng.integers(12, 20)))

    whole, fresh, ended, rest, following, kept, again, restarted = seen
    check_that(
        fresh == whole,
        "resume-lost",
        "With the state of a loader that has yielded nothing, the pass is not a whole epoch.",
    )
    check_that(
        ended == following,
        "samples-missing" if len(ended) < len(following) else "resume-lost",
        "With the state from the end of epoch 0, and then set_epoch(1), the pass is not all of "
        "epoch 1. Setting another epoch must drop the position.",
    )
    check_that(
        rest == [],
        "samples-repeated",
        "With the state from the end of epoch 0, a pass over epoch 0 is not empty. All of its "
        "sequences have been used.",
    )
    check_that(
        kept + again == whole,
        "resume-lost",
        "After load_state_dict, state_dict returns another position than was loaded, before the "
        "first batch.",
    )
    check_that(
        restarted == whole,
        "samples-missing",
        "A pass that was left after two batches changes the next pass: it is not a whole epoch.",
    )
