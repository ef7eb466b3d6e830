"""Properties of a detector for random programs and false events."""

from hypothesis import given
from hypothesis import strategies as st
from random_programs import COLLECTIVES, World, programs

from gradsync.ranks.deadlocks import explanations
from gradsync.ranks.deadlocks.detector import DeadlockDetector
from gradsync.records import Collective, Event


@given(programs(), st.integers(), st.booleans())
def test_a_correct_program_is_never_stuck(program, seed, loose):
    world = World(*program, seed, loose=loose)

    def check():
        assert not world.detector.likely()
        assert not world.detector.conflicts()

    world.run(check)

    assert world.done


@given(programs(), st.data(), st.integers())
def test_a_program_without_one_call_is_always_stuck(program, data, seed):
    world_size, steps = program
    number = data.draw(st.integers(0, len(steps) - 1))
    rank = data.draw(st.sampled_from(sorted(steps[number])))
    others = len(steps[number]) - 1
    steps[number] = {r: call for r, call in steps[number].items() if r != rank}
    world = World(world_size, steps, seed)

    world.run()

    assert world.done == (not others)
    assert bool(world.detector.likely()) == (not world.done)


@given(programs(), st.data(), st.integers())
def test_a_proved_deadlock_stays_proved(program, data, seed):
    world_size, steps = program
    number = data.draw(st.integers(0, len(steps) - 1))
    rank = data.draw(st.sampled_from(sorted(steps[number])))
    steps[number] = {r: call for r, call in steps[number].items() if r != rank}
    world = World(world_size, steps, seed)
    proved = set()

    def check():
        now = set(world.detector.proved())
        assert proved <= now
        assert now <= set(world.detector.likely())
        proved.update(now)

    world.run(check)


@given(programs(), st.integers())
def test_a_finished_program_leaves_no_state(program, seed):
    world = World(*program, seed)

    world.run()

    detector = world.detector
    assert [detector._calls, detector._operations, detector._mail] == [{}, {}, {}]


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
def test_false_events_raise_nothing(events, over):
    detector = DeadlockDetector(3)
    for event in events:
        detector.feed(event)
    detector.over = over

    for stuck in (detector.proved(), detector.likely(), detector.at_last()):
        assert not stuck or explanations.explain(detector, stuck).diagnosis.explanation
    assert all(explanations.waits_texts(detector.waits().values()))
