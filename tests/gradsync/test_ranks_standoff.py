"""Who waits for whom: events in, proofs out, no process far and wide."""

import random
from collections import Counter, deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsync.ranks import wording
from gradsync.ranks.standoff import LOOSE_OPS, Standoff
from gradsync.records import Collective, Event


class Story:
    """Tells a standoff what ranks do, in plain words."""

    def __init__(self, world_size):
        self.standoff = Standoff(world_size)
        self.everyone = tuple(range(world_size))
        self.calls = Counter()

    def enters(self, rank, op="all_reduce", **fields):
        fields = {"group": "0", "members": self.everyone, "shapes": ((2,),), **fields}
        call = self.calls[rank]
        self.calls[rank] += 1
        event = Event(rank, "enter", call, 0.0, 1, collective=Collective(op, **fields))
        return self.standoff.feed(event)

    def waits(self, rank, call=None, *, thread=1, others=0):
        call = self.calls[rank] - 1 if call is None else call
        self.standoff.feed(Event(rank, "wait", call, 0.0, thread, others))

    def leaves(self, rank, call=None, others=0):
        call = self.calls[rank] - 1 if call is None else call
        self.standoff.feed(Event(rank, "exit", call, 0.0, 1, others))

    def waits_in(self, rank, op="all_reduce", **fields):
        self.enters(rank, op, **fields)
        self.waits(rank)

    def returns(self, rank):
        self.standoff.over.add(rank)

    @property
    def proved(self):
        return set(self.standoff.proved())

    @property
    def likely(self):
        return set(self.standoff.likely())

    def told(self):
        return wording.explain(self.standoff, self.standoff.likely()).diagnosis


def test_a_rank_that_still_computes_may_yet_come():
    story = Story(3)
    story.waits_in(0)
    story.waits_in(1)

    assert not story.likely


def test_a_rank_that_returned_never_comes():
    story = Story(3)
    story.waits_in(0)
    story.waits_in(1)
    story.returns(2)

    assert story.proved == {0, 1}


def test_a_collective_that_all_have_entered_goes_on():
    story = Story(2)
    story.waits_in(0)
    story.waits_in(1)

    assert not story.likely


def test_who_waits_for_one_that_can_go_on_is_not_stuck():
    story = Story(3)
    story.waits_in(0, group="a", members=(0, 1))
    story.waits_in(1, group="b", members=(1, 2))
    story.waits_in(2, group="b", members=(1, 2))

    assert not story.likely


def test_a_circle_is_stuck():
    story = Story(3)
    for rank in range(3):
        pair = (rank, (rank + 1) % 3)
        story.waits_in(rank, group=str(pair), members=pair)

    assert story.proved == {0, 1, 2}


def test_entering_without_waiting_is_not_being_blocked():
    story = Story(2)
    story.enters(0)
    story.returns(1)

    assert not story.likely


def test_an_entered_collective_counts_after_its_rank_returned():
    story = Story(2)
    story.enters(0)
    story.returns(0)
    story.waits_in(1)

    assert not story.likely


def test_a_second_thread_may_yet_act():
    story = Story(2)
    story.enters(0)
    story.waits(0, others=1)
    story.returns(1)

    assert not story.likely


def test_a_rank_is_stuck_when_all_its_threads_are():
    story = Story(2)
    story.enters(0)
    story.enters(0, group="other")
    story.waits(0, call=0, thread=1, others=1)
    story.waits(0, call=1, thread=2, others=1)
    story.returns(1)

    assert story.proved == {0}


def test_a_wait_that_was_left_blocks_no_more():
    story = Story(2)
    story.waits_in(0)
    story.leaves(0)
    story.returns(1)

    assert not story.likely


@pytest.mark.parametrize("op", sorted(LOOSE_OPS))
def test_a_loose_collective_without_a_leaf_is_likely_but_not_proved(op):
    story = Story(3)
    leaf = 1 if op in ("reduce", "gather") else 0
    story.waits_in(leaf, op, root=0)
    story.returns(2)

    assert (story.proved, story.likely) == (set(), {leaf})


@pytest.mark.parametrize("op", ["broadcast", "scatter"])
def test_nobody_leaves_without_the_source(op):
    story = Story(3)
    story.waits_in(1, op, root=0)
    story.returns(0)

    assert story.proved == {1}


@pytest.mark.parametrize("op", ["reduce", "gather"])
def test_the_target_leaves_without_nobody(op):
    story = Story(3)
    story.waits_in(0, op, root=0)
    story.returns(2)

    assert story.proved == {0}


def test_who_waits_for_a_rank_that_may_leave_a_loose_collective_is_not_proved_stuck():
    story = Story(3)
    story.waits_in(0, group="pair", members=(0, 1))
    story.waits_in(1, "reduce", root=2)
    story.returns(2)

    assert (story.proved, story.likely) == (set(), {0, 1})


def test_nothing_to_exchange_waits_for_nobody():
    story = Story(2)
    story.waits_in(0, shapes=((0, 3),))
    story.returns(1)

    assert not story.likely


def test_a_send_meets_its_recv():
    story = Story(2)
    story.waits_in(0, "send", peer=1)
    story.waits_in(1, "recv", peer=0)

    assert not story.likely


def test_two_sends_pass_each_other():
    story = Story(2)
    story.waits_in(0, "send", peer=1)
    story.waits_in(1, "send", peer=0)

    assert story.proved == {0, 1}


def test_messages_meet_in_their_order():
    story = Story(2)
    story.enters(0, "send", peer=1)
    story.enters(0, "send", peer=1)
    story.waits_in(1, "recv", peer=0)
    story.leaves(1)
    story.waits_in(1, "recv", peer=0)
    story.leaves(1)
    story.returns(0)
    story.waits_in(1, "recv", peer=0)

    assert story.proved == {1}


def test_a_recv_from_anyone_takes_what_was_sent_before():
    story = Story(3)
    story.enters(1, "send", peer=0)
    story.returns(1)
    story.returns(2)
    story.waits_in(0, "recv", peer=None)

    assert not story.likely


def test_a_recv_from_anyone_is_stuck_when_nobody_is_left():
    story = Story(3)
    story.waits_in(0, "recv", peer=None)
    story.returns(1)
    assert not story.likely
    story.returns(2)

    assert story.proved == {0}


def test_a_recv_from_anyone_may_take_any_send():
    story = Story(2)
    story.enters(0, "recv", peer=None)
    story.waits_in(1, "send", peer=0)

    assert not story.likely


@pytest.mark.parametrize(
    ("one", "other", "code"),
    [
        ({"op": "barrier"}, {"op": "all_reduce"}, "deadlock-order-differs"),
        ({"shapes": ((2,),)}, {"shapes": ((3,),)}, "shape-mismatch"),
        ({"dtype": "int64"}, {"dtype": "float32"}, "shape-mismatch"),
        ({"reduce": "SUM"}, {"reduce": "MAX"}, "shape-mismatch"),
        ({"op": "broadcast", "root": 0}, {"op": "broadcast", "root": 1}, "wrong-source"),
        (
            {"shapes": ((2,),), "label": "a"},
            {"shapes": ((3,),), "label": "b"},
            "deadlock-order-differs",
        ),
    ],
    ids=["op", "shape", "dtype", "reduction", "root", "parameter"],
)
def test_what_does_not_fit_may_not_start(one, other, code):
    story = Story(2)

    assert story.enters(0, **one)
    story.waits(0)
    assert not story.enters(1, **other)

    assert story.proved == {0, 1}
    assert story.told().code == code


def test_shapes_of_one_size_fit():
    story = Story(2)

    assert story.enters(0, shapes=((2, 3),))
    assert story.enters(1, shapes=((6,),))


def test_parts_of_unlike_sizes_may_be_exchanged():
    story = Story(2)

    assert story.enters(0, "all_to_all_single", shapes=((2,),))
    assert story.enters(1, "all_to_all_single", shapes=((3,),))


@pytest.mark.parametrize(
    ("sent", "received", "fits"),
    [
        (((2,), "float32"), ((2,), "float32"), True),
        (((2,), "float32"), ((3,), "float32"), True),
        (((3,), "float32"), ((2,), "float32"), False),
        (((2,), "float64"), ((2,), "float32"), False),
        (((8,), "uint8"), ((2,), "float32"), True),
    ],
)
def test_a_message_must_fit_its_receiver(sent, received, fits):
    story = Story(2)
    story.enters(0, "send", peer=1, shapes=(sent[0],), dtype=sent[1])

    assert story.enters(1, "recv", peer=0, shapes=(received[0],), dtype=received[1]) == fits


def test_each_group_counts_for_itself():
    story = Story(2)
    story.enters(0, "barrier", group="a")
    story.enters(0, "all_reduce", group="b")
    story.enters(1, "all_reduce", group="b")

    assert story.enters(1, "barrier", group="a")


def test_the_odd_one_out_is_named():
    story = Story(4)
    for rank in (3, 0, 1, 2):
        story.waits_in(rank, "barrier" if rank == 3 else "all_reduce")

    assert story.told().ranks == (3,)


def test_a_rank_that_returned_is_named_before_those_that_wait_elsewhere():
    story = Story(4)
    story.waits_in(3, "recv", peer=0)
    story.waits_in(0)
    story.waits_in(2)
    story.returns(1)

    assert (story.told().code, story.told().ranks) == ("deadlock-rank-missing", (1,))


def test_what_most_wait_in_is_told_first():
    story = Story(4)
    story.waits_in(3, "recv", peer=0)
    for rank in (0, 1, 2):
        story.waits_in(rank)

    assert (story.told().code, story.told().ranks) == ("deadlock-order-differs", (3,))


def test_polling_counts_when_the_time_is_up():
    story = Story(2)
    story.enters(0)
    story.returns(1)

    assert set(story.standoff.at_last()) == {0}


def test_polling_for_one_that_may_come_does_not():
    story = Story(2)
    story.enters(0)

    assert not story.standoff.at_last()


def test_idle_threads_do_not_count_when_the_time_is_up():
    story = Story(2)
    story.enters(0)
    story.waits(0, others=3)
    story.returns(1)

    assert set(story.standoff.at_last()) == {0}


# Programs, run by a little world of its own: what it knows of matching it knows by itself.

COLLECTIVES = ("all_reduce", "barrier", "broadcast", "reduce")


@st.composite
def programs(draw):
    """Draw what N ranks do, in an order that suits all."""
    world_size = draw(st.integers(2, 4))
    ranks = st.integers(0, world_size - 1)
    steps = []
    for _ in range(draw(st.integers(1, 8))):
        if draw(st.booleans()):
            members = tuple(sorted(draw(st.sets(ranks, min_size=1))))
            op, root = draw(st.sampled_from(COLLECTIVES)), draw(st.sampled_from(members))
            root = root if op in LOOSE_OPS else None
            call = Collective(op, str(members), members, ((2,),), root=root)
            steps.append(dict.fromkeys(members, call))
        else:
            source, target = draw(st.permutations(range(world_size)))[:2]
            tag = draw(st.integers(0, 1))
            send = Collective("send", "0", tuple(range(world_size)), peer=target, tag=tag)
            steps.append({source: send, target: replace(send, op="recv", peer=source)})
    return world_size, steps


class World:
    """N ranks that take their steps in a random order; their reports are read in another.

    If `loose`, a rank leaves a loose collective as soon as it has what it needs.
    """

    def __init__(self, world_size, steps, seed, *, loose=False):
        self.loose = loose
        self.random = random.Random(seed)
        self.standoff = Standoff(world_size)
        self.todo = [
            deque((number, step[rank]) for number, step in enumerate(steps) if rank in step)
            for rank in range(world_size)
        ]
        self.unread = [deque() for _ in range(world_size)]
        self.doing = ["compute"] * world_size
        self.started = [[] for _ in range(world_size)]
        self.calls = [0] * world_size
        self.backlog = [[] for _ in range(world_size)]

    def run(self, after_each_report=lambda: None):
        """Go on until nothing more can happen."""
        while choices := list(self._choices()):
            action, rank = self.random.choice(choices)
            action(rank)
            if action == self._read:
                after_each_report()

    @property
    def done(self):
        return all(state == "over" for state in self.doing)

    def _choices(self):
        for rank, state in enumerate(self.doing):
            if self.unread[rank]:
                yield self._read, rank
            if state == "compute":
                yield (self._enter if self.todo[rank] else self._return), rank
            if state == "wait" and self._is_complete(rank):
                yield self._leave, rank

    def _enter(self, rank):
        event = Event(rank, "enter", self.calls[rank], 0.0, 1, collective=self.todo[rank][0][1])
        self._report(rank, event, replace(event, kind="wait", collective=None))
        self.doing[rank] = "ask"

    def _read(self, rank):
        event = self.unread[rank].popleft()
        if event == "over":
            self.standoff.over.add(rank)
        elif self.standoff.feed(event) and event.kind == "enter":
            self.started[rank].append(self.todo[rank].popleft())
            self.doing[rank] = "wait"

    def _leave(self, rank):
        self.backlog[rank].append(Event(rank, "exit", self.calls[rank], 0.0, 1))
        if self.started[rank][-1][1].op in LOOSE_OPS:
            self._report(rank)
        self.calls[rank] += 1
        self.doing[rank] = "compute"

    def _return(self, rank):
        self._report(rank, "over")
        self.doing[rank] = "over"

    def _report(self, rank, *events):
        self.unread[rank] += [*self.backlog[rank], *events]
        self.backlog[rank].clear()

    def _is_complete(self, rank):
        _, mine = self.started[rank][-1]
        partners = mine.members if mine.peer is None else (mine.peer,)
        if self.loose and mine.root not in (None, rank):
            partners = (mine.root,) if mine.op == "broadcast" else ()
        return all(
            self._count(rank, other, mine) <= self._met(other, rank, mine) for other in partners
        )

    def _count(self, rank, other, mine):
        return sum(self._alike(call, mine, other) for _, call in self.started[rank])

    def _met(self, other, rank, mine):
        back = {"send": "recv", "recv": "send"}
        theirs = replace(mine, op=back.get(mine.op, mine.op))
        return sum(self._alike(call, theirs, rank) for _, call in self.started[other])

    @staticmethod
    def _alike(call, wanted, peer):
        if wanted.peer is None:
            return call.group == wanted.group and call.peer is None
        return (call.op, call.peer, call.tag) == (wanted.op, peer, wanted.tag)


@given(programs(), st.integers(), st.booleans())
def test_a_correct_program_is_never_stuck(program, seed, loose):
    world = World(*program, seed, loose=loose)

    def check():
        assert not world.standoff.likely()
        assert not world.standoff.conflicts()

    world.run(check)

    assert world.done


@given(programs(), st.data(), st.integers())
def test_a_program_that_lacks_one_call_always_is(program, data, seed):
    world_size, steps = program
    number = data.draw(st.integers(0, len(steps) - 1))
    rank = data.draw(st.sampled_from(sorted(steps[number])))
    others = len(steps[number]) - 1
    steps[number] = {r: call for r, call in steps[number].items() if r != rank}
    world = World(world_size, steps, seed)

    world.run()

    assert world.done == (not others)
    assert bool(world.standoff.likely()) == (not world.done)


@given(programs(), st.data(), st.integers())
def test_what_is_proved_stays_so(program, data, seed):
    world_size, steps = program
    number = data.draw(st.integers(0, len(steps) - 1))
    rank = data.draw(st.sampled_from(sorted(steps[number])))
    steps[number] = {r: call for r, call in steps[number].items() if r != rank}
    world = World(world_size, steps, seed)
    proved = set()

    def check():
        now = set(world.standoff.proved())
        assert proved <= now
        assert now <= set(world.standoff.likely())
        proved.update(now)

    world.run(check)


@given(programs(), st.integers())
def test_a_finished_program_leaves_nothing_to_remember(program, seed):
    world = World(*program, seed)

    world.run()

    standoff = world.standoff
    assert [standoff._calls, standoff._meetings, standoff._mail] == [{}, {}, {}]


fields = st.builds(
    Collective,
    op=st.sampled_from([*COLLECTIVES, "send", "recv", "init_process_group", ""]),
    group=st.sampled_from("ab"),
    members=st.lists(st.integers(-1, 5), max_size=4).map(tuple),
    shapes=st.lists(st.lists(st.integers(-5, 2**62), max_size=3).map(tuple), max_size=2).map(tuple),
    dtype=st.none() | st.sampled_from(["float32", "nonsense"]),
    root=st.none() | st.integers(-1, 5),
    peer=st.none() | st.integers(-1, 5),
)
lies = st.builds(
    Event,
    rank=st.integers(0, 2),
    kind=st.sampled_from(["wait", "exit"]),
    call=st.integers(-1, 5),
    seconds=st.just(0.0),
    thread=st.integers(0, 2),
    others=st.integers(-2, 2),
) | st.builds(
    Event,
    rank=st.integers(0, 2),
    kind=st.just("enter"),
    call=st.integers(-1, 5),
    seconds=st.just(0.0),
    thread=st.integers(0, 2),
    others=st.integers(-2, 2),
    collective=fields,
)


@given(st.lists(lies, max_size=30), st.sets(st.integers(0, 2)))
def test_no_lie_upsets_it(events, over):
    standoff = Standoff(3)
    for event in events:
        standoff.feed(event)
    standoff.over = over

    for stuck in (standoff.proved(), standoff.likely(), standoff.at_last()):
        assert not stuck or wording.explain(standoff, stuck).diagnosis.explanation
    assert all(wording.waits_texts(standoff.waits().values()))
