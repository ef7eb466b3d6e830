"""The resumed sampler: the samples of each rank in the rest of an epoch."""

import math

from gradsync.testing import check, exercise, raise_mistake
from gradsync.text import counted
from support.probes.sampling import indices_of
from support.rules.strides import GUIDE, diagnose_strides, rows_of


def probe_scripts(data_loader, cases, seed=0):
    """Run each case's script on all its ranks; return the epochs' complete orders, and the passes.

    A script is a list of calls, `["resume", 2, 5]` or `["set_epoch", 2]`; at each `["pass"]` the
    sampler's length and its indices are recorded. An epoch's order is what a new sampler of a
    single rank yields after `set_epoch`.
    """
    sampler_class = data_loader.ResumableDistributedSampler

    def order_of(epoch, samples, shuffle):
        alone = sampler_class(range(samples), 1, 0, shuffle=shuffle, seed=seed)
        alone.set_epoch(epoch)
        return indices_of(alone)

    def play(script, sampler):
        passes = []
        for name, *arguments in script:
            if name == "pass":
                passes.append([len(sampler), indices_of(sampler)])
            else:
                getattr(sampler, name)(*arguments)
        return passes

    seen = []
    for m, n, options, epochs, script in cases:
        orders = [order_of(epoch, m, options.get("shuffle", True)) for epoch in epochs]
        by_rank = [
            play(script, sampler_class(range(m), n, r, seed=seed, **options)) for r in range(n)
        ]
        seen.append([orders, by_rank])
    return seen


def shares_in(by_rank, number):
    return [passes[number][1] for passes in by_rank]


def draw_resumes(rng, count=25):
    """Draw (M, current N, samples seen): multiples of the previous N or not, with few remaining."""
    cases = [(10, 3, 4), (10, 4, 3), (12, 4, 8), (9, 4, 8), (10, 1, 7), (40, 3, 16), (30, 4, 0)]
    for _ in range(count):
        m = int(rng.integers(2, 90))
        cases.append((m, int(rng.integers(1, 9)), int(rng.integers(0, m))))
    return cases


def check_orders(orders, samples):
    for order in orders:
        check(
            sorted(order) == list(range(samples)),
            "samples-missing",
            f"A pass over {samples} samples on a single rank, without `resume`, does not yield "
            "every sample once.",
            guide=GUIDE,
        )


@exercise("phase2/ResumableDistributedSampler", points=2)
def test_the_current_ranks_share_the_remaining_samples(ranks, rng):
    """After `resume`, the current ranks share the rest of the epoch, padded with its beginning."""
    cases = [
        (m, n, {"shuffle": shuffle}, [epoch], [["resume", epoch, left], ["pass"]])
        for shuffle, epoch in ((False, 0), (True, 0), (True, 3))
        for m, n, left in draw_resumes(rng)
    ]

    [seen] = ranks(probe_scripts, 1, process_group=False, cases=cases, seed=int(rng.integers(1000)))

    for (m, *_, script), (orders, by_rank) in zip(cases, seen, strict=True):
        check_orders(orders, m)
        raise_mistake(diagnose_strides(shares_in(by_rank, 0), orders[0], seen=script[0][2]))


@exercise("phase2/ResumableDistributedSampler", points=0.5)
def test_the_rest_is_cut_with_drop_last(ranks, rng):
    """With `drop_last`, the rest of the epoch is cut to a multiple of the current N."""
    cases = [
        (m, n, {"drop_last": True}, [1], [["resume", 1, left], ["pass"]])
        for m, n, left in draw_resumes(rng)
    ]

    [seen] = ranks(probe_scripts, 1, process_group=False, cases=cases)

    for (m, *_, script), (orders, by_rank) in zip(cases, seen, strict=True):
        check_orders(orders, m)
        shares = shares_in(by_rank, 0)
        raise_mistake(diagnose_strides(shares, orders[0], seen=script[0][2], drop_last=True))


@exercise("phase2/ResumableDistributedSampler", points=0.5)
def test_no_sample_is_missed_when_the_world_size_changes(ranks, rng):
    """If the number of ranks changes in an epoch, every sample comes once, and then the padding."""

    def probe(data_loader, cases, seed):
        sampler_class = data_loader.ResumableDistributedSampler
        seen = []
        for m, before, now, rows in cases:
            first, second = (
                [sampler_class(range(m), n, r, seed=seed) for r in range(n)] for n in (before, now)
            )
            for sampler in first:
                sampler.set_epoch(2)
            for sampler in second:
                sampler.resume(2, rows * before)
            taken = [index for sampler in first for index in indices_of(sampler)[:rows]]
            seen.append([taken, [index for sampler in second for index in indices_of(sampler)]])
        return seen

    cases = [(int(rng.integers(20, 60)), b, n, 4) for b in (1, 2, 4) for n in (1, 2, 3, 4)]
    [seen] = ranks(probe, 1, process_group=False, cases=cases, seed=int(rng.integers(1000)))

    for (m, before, now, rows), (taken, rest) in zip(cases, seen, strict=True):
        missed = set(range(m)) - set(taken) - set(rest)
        left = m - rows * before
        padding = math.ceil(left / now) * now - left
        case = (
            f"{m} samples, of which {counted(before, 'rank')} use {rows} each, and then "
            f"{counted(now, 'rank')} the rest"
        )
        check(
            not missed,
            "samples-missing",
            f"{case}: {len(missed)} of the samples are never used.",
            guide=GUIDE,
        )
        check(
            not set(taken) & set(rest) and len(taken) + len(rest) == m + padding,
            "samples-repeated",
            f"{case}: more samples than the padding are used twice, "
            f"{len(set(taken) & set(rest))} of them before the change.",
            guide=GUIDE,
        )


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_set_epoch_keeps_only_the_position_of_the_same_epoch(ranks, rng):
    """`set_epoch` with the resumed epoch keeps the position; any other epoch drops it."""
    m, n = int(rng.integers(30, 60)), int(rng.integers(2, 5))
    seen_before = int(rng.integers(n + 1, 20))
    scripts = [  # the calls, and the epoch and the position of the next pass
        ([["resume", 2, seen_before], ["set_epoch", 2]], 2, seen_before),
        ([["resume", 0, seen_before], ["set_epoch", 0]], 0, seen_before),
        ([["resume", 2, seen_before], ["set_epoch", 2], ["set_epoch", 2]], 2, seen_before),
        ([["set_epoch", 5], ["resume", 2, seen_before], ["set_epoch", 2]], 2, seen_before),
        ([["set_epoch", 5], ["resume", 2, seen_before]], 2, seen_before),
        ([["resume", 1, 3], ["resume", 2, seen_before]], 2, seen_before),
        ([["resume", 2, 3], ["resume", 0, seen_before]], 0, seen_before),
        ([["set_epoch", 5], ["resume", 0, seen_before]], 0, seen_before),
        ([["resume", 2, seen_before], ["resume", 2, 0]], 2, 0),
        ([["resume", 2, seen_before], ["set_epoch", 3]], 3, 0),
        ([["resume", 2, seen_before], ["set_epoch", 0]], 0, 0),
        ([["resume", 2, seen_before], ["set_epoch", 3], ["set_epoch", 2]], 2, 0),
    ]
    cases = [(m, n, {}, [epoch], [*calls, ["pass"]]) for calls, epoch, _ in scripts]

    [seen] = ranks(probe_scripts, 1, process_group=False, cases=cases)

    for (calls, epoch, position), (orders, by_rank) in zip(scripts, seen, strict=True):
        check_orders(orders, m)
        shares = shares_in(by_rank, 0)
        diagnosis = diagnose_strides(shares, orders[0], seen=position)
        made = ", ".join(f"{name}({', '.join(map(str, rest))})" for name, *rest in calls)
        wanted = f"the rest of epoch {epoch}" if position else f"all of epoch {epoch}"
        check(
            diagnosis is None,
            "resume-lost" if position else diagnosis.code if diagnosis else "",
            f"{m} samples on {n} ranks: the pass after {made} must be {wanted}. A later `resume` "
            "replaces an earlier one, even for epoch 0 or position 0. `set_epoch` with the same "
            "epoch keeps the position; a different epoch clears it.",
            guide=GUIDE,
        )


@exercise("phase2/ResumableDistributedSampler", points=0.5)
def test_the_pass_after_the_resumed_one_is_whole(ranks, rng):
    """Only the first pass after `resume` is the rest of an epoch; the next one is complete."""
    m, n = int(rng.integers(30, 60)), int(rng.integers(2, 5))
    first = [["resume", 2, 2 * n + 1], ["set_epoch", 2], ["pass"]]
    cases = [
        (m, n, {}, [3], [*first, ["set_epoch", 3], ["pass"]]),
        (m, n, {}, [2], [*first, ["set_epoch", 2], ["pass"]]),
        (m, n, {}, [2], [["resume", 2, m], ["pass"], ["set_epoch", 2], ["pass"]]),
        (m, n, {}, [2], [*first, ["pass"]]),
    ]

    [seen] = ranks(probe_scripts, 1, process_group=False, cases=cases)

    for (*_, script), (orders, by_rank) in zip(cases, seen, strict=True):
        check_orders(orders, m)
        shares, is_set = shares_in(by_rank, 1), script[-2][0] == "set_epoch"
        dealt = [index for row in zip(*shares, strict=False) for index in row][:m]
        is_whole = sorted(dealt) == list(range(m))
        order = dealt if is_whole and not is_set else orders[0]  # not set: any epoch is right
        diagnosis = diagnose_strides(shares, order)
        between = "after `set_epoch`" if is_set else "without `set_epoch`"
        check(
            diagnosis is None,
            diagnosis.code if diagnosis else "",
            f"The pass after the resumed one, {between}, is not a full epoch. Drop the position "
            f"at the end of the resumed pass. {diagnosis.explanation if diagnosis else ''}",
            guide=GUIDE,
        )


@exercise("phase2/ResumableDistributedSampler", points=0.5)
def test_the_length_is_what_the_next_pass_yields(ranks, rng):
    """After `resume`, `len(sampler)` counts the rest; after that pass, a complete epoch."""
    drawn = [(*case, drop) for case in draw_resumes(rng) for drop in (False, True)]
    cases = [
        (m, n, {"drop_last": drop}, [], [["pass"], ["resume", 1, left], ["pass"], ["pass"]])
        for m, n, left, drop in [*drawn, (12, 4, 12, False)]
    ]

    [seen] = ranks(probe_scripts, 1, process_group=False, cases=cases)

    for (m, n, options, _, script), (_, by_rank) in zip(cases, seen, strict=True):
        for number, left in enumerate((m, m - script[1][2], m)):
            rows = rows_of(left, n, options["drop_last"])
            lengths = [passes[number][0] for passes in by_rank]
            when = ("before `resume`", f"after resume(1, {script[1][2]})", "after that pass")[
                number
            ]
            check(
                lengths == [rows] * n == [len(passes[number][1]) for passes in by_rank],
                "wrong-length",
                f"{m} samples on {n} ranks, drop_last={options['drop_last']}: {when}, "
                f"`len(sampler)` is {lengths} by rank. It must be the number of indices that the "
                "next pass yields on the rank.",
                guide=GUIDE,
            )
