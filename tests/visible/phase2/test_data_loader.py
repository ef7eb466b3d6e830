"""Visible tests of template_data_loader.py: few samples, so that you can follow on paper."""

from functools import partial

import torch

from gradsync.records import Diagnosis
from gradsync.testing import check, exercise, raise_mistake
from support.probes import raised
from support.probes.returned import items_of
from support.probes.sampling import (
    be_another_process,
    indices_of,
    length_of,
    pass_watched,
    passes_of_epochs,
    random_states,
    refusals,
)
from support.rules.parts import (
    MICROBATCHES,
    SHARDS,
    not_ranges,
    not_refused,
    other_kinds,
    other_number,
    uneven_parts,
)
from support.rules.samplers import (
    BAD_ARGUMENTS,
    epoch_ignored,
    not_shuffled,
    other_seed_by_default,
    process_has_a_say,
    random_state_touched,
    refused_wrongly,
    seed_ignored,
)
from support.rules.strides import GUIDE, diagnose_strides


def probe_passes(data_loader, samples, world_size, calls, **options):
    """Return, for each rank, [length, indices] of its sampler's pass at each "pass" in `calls`."""
    by_rank = []
    for rank in range(world_size):
        sampler = data_loader.ResumableDistributedSampler(
            range(samples), world_size, rank, **options
        )
        passes = []
        for name, *arguments in calls:
            if name == "pass":
                passes.append([length_of(sampler), indices_of(sampler)])
            else:
                getattr(sampler, name)(*arguments)
        by_rank.append(passes)
    return by_rank


def run(ranks, samples, world_size, calls=(("pass",),), **options):
    """Run one process that goes through the samplers of all ranks; return each pass of the ranks.

    A pass is a list of [length, indices], one for each rank.
    """
    given = {"samples": samples, "calls": calls, **options}

    def probe(data_loader, size, given):
        return probe_passes(data_loader, world_size=size, **given)

    [seen] = ranks(probe, 1, process_group=False, size=world_size, given=given)
    return list(zip(*seen, strict=True))


def assert_shares(of_ranks, wanted, order, **options):
    """Compare a pass, [length, indices] of each rank, with the expected indices."""
    shares = [indices for _, indices in of_ranks]
    found = diagnose_strides(shares, order, **options)
    if found is not None:
        text = f"{found.explanation} The ranks get {shares}, but should get {wanted}."
        raise_mistake(Diagnosis(found.code, found.ranks, text, guide=GUIDE))


def assert_lengths(of_ranks, case):
    lengths, counts = [length for length, _ in of_ranks], [len(own) for _, own in of_ranks]
    check(
        lengths == counts,
        "wrong-length",
        f"{case}: `len(sampler)` is {lengths} by rank, but the next pass yields {counts} indices.",
        guide=GUIDE,
    )


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_every_rank_takes_every_nth_sample(ranks):
    """10 samples on 4 ranks: [0,4,8] [1,5,9] [2,6,0] [3,7,1]."""
    [seen] = run(ranks, 10, 4, shuffle=False)

    assert_shares(seen, [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]], range(10))


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_few_samples_are_repeated_as_often_as_needed(ranks):
    """2 samples on 5 ranks: the order 0, 1 is continued with 0, 1 and 0."""
    [seen] = run(ranks, 2, 5, shuffle=False)

    assert_shares(seen, [[0], [1], [0], [1], [0]], range(2))


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_drop_last_cuts_the_incomplete_row(ranks):
    """5 samples on 3 ranks with `drop_last`: each rank gets one sample, and 3 and 4 are dropped."""
    [seen] = run(ranks, 5, 3, shuffle=False, drop_last=True)

    assert_shares(seen, [[0], [1], [2]], range(5), drop_last=True)


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_samples_are_shuffled_by_default(ranks):
    """20 samples on one rank: all come once, in a different order."""
    [[(_, order)]] = run(ranks, 20, 1)

    missing = sorted(set(range(20)) - set(order))
    check(
        not missing and len(order) == 20,
        "samples-missing",
        f"20 samples on a single rank: the rank gets {order}. It must get every sample once.",
        guide=GUIDE,
    )
    raise_mistake(not_shuffled(order, GUIDE))


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_the_order_is_the_same_for_every_world_size(ranks):
    """6 shuffled samples on 1, 2, 3 and 4 ranks: the ranks share one order, padded on 4 or cut."""
    [[(_, order)]] = run(ranks, 6, 1)

    for world_size in (2, 3, 4):
        [seen] = run(ranks, 6, world_size)
        [cut] = run(ranks, 6, world_size, drop_last=True)
        raise_mistake(diagnose_strides([own for _, own in seen], order))
        raise_mistake(diagnose_strides([own for _, own in cut], order, drop_last=True))


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_every_process_computes_the_same_order(ranks):
    """Two processes whose random states, clocks and hashes differ have the same order of 50."""

    def probe(rank, data_loader):
        be_another_process(rank)
        return indices_of(data_loader.ResumableDistributedSampler(range(50), 1, 0))

    seen = ranks(probe, 2, process_group=False)

    raise_mistake(process_has_a_say(seen, GUIDE))


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_the_global_random_state_stays_the_same(ranks):
    """The random states of torch, numpy and Python do not change, nor during a resumed pass."""

    def probe(data_loader):
        before = random_states()
        sampler = data_loader.ResumableDistributedSampler(range(9), 1, 0)
        sampler.set_epoch(3)
        first = pass_watched(sampler, before)
        sampler.resume(4, 2)
        return [first, pass_watched(sampler, before)]

    [seen] = ranks(probe, 1, process_group=False)

    for _, during, touched in seen:
        raise_mistake(random_state_touched(during, touched, GUIDE))


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_every_epoch_has_its_own_order(ranks):
    """Epochs 0, 1 and 2 of 20 samples have three orders; a new sampler is at epoch 0."""

    def probe(data_loader):
        return passes_of_epochs(lambda: data_loader.ResumableDistributedSampler(range(20), 2, 1))

    [seen] = ranks(probe, 1, process_group=False)

    raise_mistake(epoch_ignored(seen, GUIDE))


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_every_seed_has_its_own_order(ranks):
    """Seeds 0, 1 and 2 give three orders of 20 samples in epochs 0 and 3; the default is seed 0."""

    def probe(data_loader):
        made = partial(data_loader.ResumableDistributedSampler, range(20), 1, 0)
        samplers = [made(), *(made(seed=seed) for seed in range(3))]
        orders = [[indices_of(sampler) for sampler in samplers]]
        for sampler in samplers:
            sampler.set_epoch(3)
        return [*orders, [indices_of(sampler) for sampler in samplers]]

    [seen] = ranks(probe, 1, process_group=False)

    for epoch, (by_default, *orders) in zip((0, 3), seen, strict=True):
        raise_mistake(seed_ignored(orders, epoch, GUIDE))
        raise_mistake(other_seed_by_default(by_default, orders[0], GUIDE))


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_impossible_arguments_are_refused_by_name(ranks):
    """0 ranks, rank 4 of 4 and an empty dataset raise a ValueError that names the argument."""

    def probe(data_loader):
        return refusals(data_loader.ResumableDistributedSampler, BAD_ARGUMENTS)

    [seen] = ranks(probe, 1, process_group=False)

    raise_mistake(refused_wrongly("ResumableDistributedSampler", seen, GUIDE))


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_four_ranks_continue_where_two_stopped(ranks):
    """2 ranks used 4 of 10 samples: 4 ranks share the other 6, padded with 4 and 5."""
    [left] = run(ranks, 10, 4, [["resume", 3, 4], ["pass"]], shuffle=False)

    assert_shares(left, [[4, 8], [5, 9], [6, 4], [7, 5]], range(10), seen=4)


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_the_rest_is_cut_with_drop_last(ranks):
    """With M=10, N=3 and 4 samples seen, six are left and each rank gets two."""
    calls = [["resume", 3, 4], ["pass"]]
    [left] = run(ranks, 10, 3, calls, shuffle=False, drop_last=True)

    assert_shares(left, [[4, 7], [5, 8], [6, 9]], range(10), seen=4, drop_last=True)


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_the_rest_of_a_shuffled_epoch_continues_its_order(ranks):
    """After `resume(2, 3)`, 2 ranks get the order of epoch 2 from its fourth sample on."""
    [[(_, order)]] = run(ranks, 9, 1, [["set_epoch", 2], ["pass"]])
    [left] = run(ranks, 9, 2, [["resume", 2, 3], ["pass"]])
    [cut] = run(ranks, 9, 4, [["resume", 2, 3], ["pass"]], drop_last=True)

    assert_shares(left, [order[3::2], order[4::2]], order, seen=3)
    assert_shares(cut, [[index] for index in order[3:7]], order, seen=3, drop_last=True)


KEEPS = "`set_epoch` with the resumed epoch keeps the position, and a different epoch drops it"
PLAIN = ([["resume", 3, 4]], 3, 4, "")
RESUMES = (  # the calls before a pass; the epoch and the position at which the pass begins
    ([["resume", 3, 4], ["set_epoch", 3]], 3, 4, KEEPS),
    ([["resume", 0, 4], ["set_epoch", 0]], 0, 4, KEEPS),
    ([["resume", 3, 4], ["set_epoch", 2]], 2, 0, KEEPS),
    ([["resume", 3, 4], ["set_epoch", 0]], 0, 0, KEEPS),
    ([["resume", 3, 4], ["set_epoch", 2], ["set_epoch", 3]], 3, 0, KEEPS),
    ([["set_epoch", 5], ["resume", 3, 4]], 3, 4, "`resume` sets the epoch too"),
    ([["set_epoch", 5], ["resume", 0, 4]], 0, 4, "`resume` sets the epoch too, also to 0"),
    ([["resume", 1, 3], ["resume", 3, 4]], 3, 4, "a later `resume` replaces an earlier one"),
    ([["resume", 3, 4], ["resume", 3, 0]], 3, 0, "a later `resume` replaces an earlier one"),
)


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_set_epoch_keeps_only_the_position_of_the_same_epoch(ranks):
    """`set_epoch(3)` after `resume(3, 4)` keeps the position, and `set_epoch(2)` drops it."""

    def probe(data_loader, resumes):
        seen = []
        for calls, epoch, _, _ in resumes:
            alone = [["set_epoch", epoch], ["pass"]]
            [[[_, order]]] = probe_passes(data_loader, 20, 1, alone)
            seen.append([order, probe_passes(data_loader, 20, 2, [*calls, ["pass"]])])
        return seen

    [seen] = ranks(probe, 1, process_group=False, resumes=[PLAIN, *RESUMES])

    (order, by_rank), *seen = seen
    raise_mistake(diagnose_strides([passes[0][1] for passes in by_rank], order, seen=4))
    for (calls, epoch, position, why), (order, by_rank) in zip(RESUMES, seen, strict=True):
        shares = [passes[0][1] for passes in by_rank]
        found = diagnose_strides(shares, order, seen=position)
        made = ", ".join(f"{name}({', '.join(map(str, rest))})" for name, *rest in calls)
        wanted = f"the rest of epoch {epoch}" if position else f"all of epoch {epoch}"
        check(
            found is None,
            "resume-lost" if position else found.code if found else "",
            f"20 samples on 2 ranks: the pass after {made} must be {wanted}: {why}.",
            guide=GUIDE,
        )


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_the_pass_after_the_resumed_one_is_whole(ranks):
    """The pass after the rest of epoch 3 has all 10 samples again, with `set_epoch` or without."""
    for between in ([["set_epoch", 4]], [["set_epoch", 3]], []):
        calls = [["resume", 3, 4], ["set_epoch", 3], ["pass"], *between, ["pass"]]
        _, whole = run(ranks, 10, 4, calls, shuffle=False)
        shares = [indices for _, indices in whole]
        found = diagnose_strides(shares, range(10))
        check(
            found is None,
            found.code if found else "",
            f"10 samples on 4 ranks, not shuffled: the pass after the resumed one yields {shares}, "
            "but must yield all samples. Drop the position when the resumed pass begins or ends.",
            guide=GUIDE,
        )


@exercise("phase2/ResumableDistributedSampler", points=1)
def test_the_length_is_what_the_next_pass_yields(ranks):
    """10 samples on 4 ranks: the length is 3, or 2 with `drop_last`; then that of the rest.

    After resume(1, 10), no sample is left: the length is 0.
    """
    calls = [["pass"], ["resume", 1, 7], ["pass"], ["pass"], ["resume", 1, 10], ["pass"]]
    whens = ("in a new sampler", "after resume(1, 7)", "after the resumed pass")
    whens += ("after resume(1, 10)",)
    for drop_last in (False, True):
        seen = run(ranks, 10, 4, calls, drop_last=drop_last)
        for of_ranks, when in zip(seen, whens, strict=True):
            assert_lengths(of_ranks, f"10 samples on 4 ranks, drop_last={drop_last}, {when}")


def probe_shards(data_loader, samples, size):
    shards = [data_loader.shard_without_padding(samples, size, rank) for rank in range(size)]
    return [[type(s).__name__, [int(i) for i in items_of(s, "a share")]] for s in shards]


@exercise("phase2/shard_without_padding", points=1)
def test_ten_samples_are_shared_by_four_ranks(ranks):
    """10 samples on 4 ranks: [0,1,2] [3,4,5] [6,7] [8,9]."""
    [seen] = ranks(probe_shards, 1, process_group=False, samples=10, size=4)

    case = "10 samples on 4 ranks"
    raise_mistake(uneven_parts([part for _, part in seen], 10, case, SHARDS))
    raise_mistake(not_ranges([kind for kind, _ in seen], case))


@exercise("phase2/shard_without_padding", points=1)
def test_a_rank_may_have_an_empty_share(ranks):
    """1 sample on 3 ranks: rank 0 gets it, and the shares of ranks 1 and 2 are empty ranges."""
    [seen] = ranks(probe_shards, 1, process_group=False, samples=1, size=3)

    raise_mistake(uneven_parts([part for _, part in seen], 1, "1 sample on 3 ranks", SHARDS))
    raise_mistake(not_ranges([kind for kind, _ in seen], "1 sample on 3 ranks"))


def probe_parts(data_loader):
    """Split three tensors of 7 samples into 3 parts, then change the last part."""
    batch = (torch.arange(14).view(7, 2), torch.arange(7) * 10, torch.arange(7.0))
    parts = data_loader.split_microbatches(batch, 3)
    is_list = isinstance(parts, list)
    parts = items_of(parts, "the result of split_microbatches")
    kinds = [is_list, *(isinstance(part, tuple) for part in parts)]
    values = [[tensor.tolist() for tensor in part] for part in parts]
    for tensor in parts[-1]:
        tensor.fill_(-1)
    return [kinds, values, [tensor.flatten()[-1].item() for tensor in batch]]


CASE = "A batch of 7 samples in 3 parts"


@exercise("phase2/split_microbatches", points=1)
def test_every_tensor_is_split_at_the_same_positions(ranks):
    """Sample 3 has the inputs 6 and 7, the target 30 and the weight 3: they stay together."""
    [(_, parts, _)] = ranks(probe_parts, 1, process_group=False)

    raise_mistake(other_number(parts, 3, 3, CASE))
    for inputs, targets, weights in parts:
        by_targets = [target // 10 for target in targets]
        check(
            by_targets == [int(w) for w in weights]
            and inputs == [[2 * sample, 2 * sample + 1] for sample in by_targets],
            "microbatch-order",
            f"{CASE}: a part has the inputs {inputs}, the targets {targets} and the weights "
            f"{weights}, which belong to different samples: sample 3 has the inputs [6, 7], the "
            "target 30 and the weight 3. Split every tensor along dim 0, at the same positions.",
            guide=MICROBATCHES,
        )


@exercise("phase2/split_microbatches", points=1)
def test_seven_samples_make_three_microbatches(ranks):
    """7 samples in 3 parts: a list of three tuples, of 3, 2 and 2 samples."""
    [(kinds, parts, _)] = ranks(probe_parts, 1, process_group=False)

    raise_mistake(other_kinds(kinds, CASE))
    raise_mistake(other_number(parts, 3, 3, CASE))
    numbers = [[row[0] // 2 for row in part[0]] for part in parts]
    raise_mistake(uneven_parts(numbers, 7, CASE, MICROBATCHES))


@exercise("phase2/split_microbatches", points=1)
def test_the_parts_are_views_of_the_batch(ranks):
    """After -1 is written into the last part, the batch ends with -1 too."""
    [(_, _, last)] = ranks(probe_parts, 1, process_group=False)

    check(
        last == [-1, -1, -1],
        "tensors-replaced",
        f"{CASE}: after -1 is written into the last part, the tensors of the batch end with "
        f"{last}. The parts must be views of the batch, not copies.",
        guide=MICROBATCHES,
    )


@exercise("phase2/split_microbatches", points=1)
def test_more_parts_than_samples_are_refused(ranks):
    """3 samples can be split into 1, 2 or 3 parts; 4, 0 and -1 parts raise a ValueError."""

    def probe(data_loader, cases):
        for number in (1, 2, 3):  # these are accepted
            data_loader.split_microbatches((torch.zeros(3, 2),), number)
        answers = []
        for samples, number in cases:
            batch = (torch.zeros(samples, 2),)
            error = raised(partial(data_loader.split_microbatches, batch, number))
            got = f"a different error ({type(error).__name__}: {error})" if error else "no error"
            answers.append(None if isinstance(error, ValueError) else got)
        return answers

    cases = [(3, 4), (3, 0), (3, -1)]
    [seen] = ranks(probe, 1, process_group=False, cases=cases)

    raise_mistake(not_refused(seen, cases))
