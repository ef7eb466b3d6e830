"""Who gets which samples of what is left of an epoch: the sampler, resumed."""

import math

from gradsync.diagnose.strides import GUIDE, diagnose_strides, rows_of
from gradsync.probes.sampling import indices_of
from gradsync.testing import check, exercise, hold


def probe_scripts(data_loader, cases, seed=0):
    """Play each case's script on all of its ranks, each beside the epochs' whole orders.

    A script is a list of calls, `["resume", 2, 5]` or `["set_epoch", 2]`; at each `["pass"]` the
    sampler says its length and is gone through. An epoch's order is what a new sampler, alone,
    gives after `set_epoch`.
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
    """Draw (M, N of now, samples seen): in rows of before and not, nothing left, almost nothing."""
    cases = [(10, 3, 4), (10, 4, 3), (12, 4, 8), (9, 4, 8), (10, 1, 7), (40, 3, 16), (30, 4, 0)]
    for _ in range(count):
        m = int(rng.integers(2, 90))
        cases.append((m, int(rng.integers(1, 9)), int(rng.integers(0, m))))
    return cases


def hold_orders(orders, samples):
    for order in orders:
        check(
            sorted(order) == list(range(samples)),
            "samples-missing",
            f"a pass over {samples} samples on one rank, without `resume`, does not give every "
            "sample once",
            guide=GUIDE,
        )


@exercise("phase2/ResumableDistributedSampler", points=2)
def test_the_ranks_of_now_share_what_is_left(ranks, rng):
    """After `resume`, the N of now share what is left, padded with its own beginning."""
    cases = [
        (m, n, {"shuffle": shuffle}, [epoch], [["resume", epoch, left], ["pass"]])
        for shuffle, epoch in ((False, 0), (True, 0), (True, 3))
        for m, n, left in draw_resumes(rng)
    ]

    [seen] = ranks(probe_scripts, 1, process_group=False, cases=cases, seed=int(rng.integers(1000)))

    for (m, *_, script), (orders, by_rank) in zip(cases, seen, strict=True):
        hold_orders(orders, m)
        hold(diagnose_strides(shares_in(by_rank, 0), orders[0], seen=script[0][2]))


@exercise("phase2/ResumableDistributedSampler", points=0.5)
def test_what_is_left_is_cut_with_drop_last(ranks, rng):
    """With `drop_last`, what is left is cut to a multiple of the N of now."""
    cases = [
        (m, n, {"drop_last": True}, [1], [["resume", 1, left], ["pass"]])
        for m, n, left in draw_resumes(rng)
    ]

    [seen] = ranks(probe_scripts, 1, process_group=False, cases=cases)

    for (m, *_, script), (orders, by_rank) in zip(cases, seen, strict=True):
        hold_orders(orders, m)
        shares = shares_in(by_rank, 0)
        hold(diagnose_strides(shares, orders[0], seen=script[0][2], drop_last=True))


@exercise("phase2/ResumableDistributedSampler", points=0.5)
def test_no_sample_is_missed_when_the_world_size_changes(ranks, rng):
    """An epoch begun on some ranks and ended on others gives every sample once, and the padding."""

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
        case = f"{m} samples, a world of {before} takes {rows} each, one of {now} what is left"
        check(
            not missed,
            "samples-missing",
            f"{case}: {len(missed)} samples are missed",
            guide=GUIDE,
        )
        check(
            not set(taken) & set(rest) and len(taken) + len(rest) == m + padding,
            "samples-repeated",
            f"{case}: more comes twice than the padding, {len(set(taken) & set(rest))} samples of "
            "it seen before",
            guide=GUIDE,
        )


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_set_epoch_keeps_the_position_of_the_same_epoch_alone(ranks, rng):
    """`set_epoch` of the resumed epoch keeps the position, of another drops it."""
    m, n = int(rng.integers(30, 60)), int(rng.integers(2, 5))
    seen_before = int(rng.integers(n + 1, 20))
    scripts = [  # what is called, and the epoch and position that the next pass is of
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
        hold_orders(orders, m)
        shares = shares_in(by_rank, 0)
        diagnosis = diagnose_strides(shares, orders[0], seen=position)
        said = ", ".join(f"{name}({', '.join(map(str, rest))})" for name, *rest in calls)
        wanted = f"what is left of epoch {epoch}" if position else f"all of epoch {epoch}"
        check(
            diagnosis is None,
            "resume-lost" if position else diagnosis.code if diagnosis else "",
            f"{m} samples on {n} ranks: the pass after {said} is not {wanted}. What the last "
            "`resume` says holds, be it 0; `set_epoch` of its epoch keeps the position, of any "
            "other drops it",
            guide=GUIDE,
        )


@exercise("phase2/ResumableDistributedSampler", points=0.5)
def test_the_pass_after_the_resumed_one_is_whole(ranks, rng):
    """Only the next pass is a rest: the one after it is a whole epoch again."""
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
        hold_orders(orders, m)
        shares, is_set = shares_in(by_rank, 1), script[-2][0] == "set_epoch"
        dealt = [index for row in zip(*shares, strict=False) for index in row][:m]
        is_whole = sorted(dealt) == list(range(m))
        order = dealt if is_whole and not is_set else orders[0]  # of which epoch, nothing says then
        diagnosis = diagnose_strides(shares, order)
        between = "after `set_epoch`" if is_set else "without `set_epoch`"
        check(
            diagnosis is None,
            diagnosis.code if diagnosis else "",
            f"the pass after the resumed one, {between}, is not a whole epoch. A position is "
            f"gone once it was resumed from. {diagnosis.explanation if diagnosis else ''}",
            guide=GUIDE,
        )


@exercise("phase2/ResumableDistributedSampler", points=0.5)
def test_the_length_is_what_the_next_pass_yields(ranks, rng):
    """`len(sampler)` is that of the rest after `resume`, and whole again after that pass."""
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
                f"`len(sampler)` is {lengths} by rank. It is what the next pass yields: a rank's "
                "part of what is left then",
                guide=GUIDE,
            )
