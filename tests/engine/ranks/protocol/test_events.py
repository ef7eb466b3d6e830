"""Events: valid ones are read, and all others are refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradsync.ranks.protocol import events
from gradsync.ranks.protocol.wire import Frame, WireError
from gradsync.records import Collective, Event

numbers = st.integers(-(2**63), 2**63)
names = st.text(st.characters(codec="utf-8"), max_size=events.MAX_TEXT)
collectives = st.builds(
    Collective,
    op=names,
    group=names,
    members=st.lists(numbers, max_size=8).map(tuple),
    shapes=st.lists(st.lists(numbers, max_size=4).map(tuple), max_size=4).map(tuple),
    dtype=st.none() | names,
    reduce=st.none() | names,
    root=st.none() | numbers,
    peer=st.none() | numbers,
    tag=numbers,
    sends=st.lists(numbers, max_size=4).map(tuple),
    receives=st.lists(numbers, max_size=4).map(tuple),
    label=st.none() | names,
    where=st.none() | names,
)
enters = st.builds(
    Event,
    rank=st.just(3),
    kind=st.just("enter"),
    call=numbers,
    seconds=st.floats(-1e8, 1e8),
    thread=numbers,
    others=numbers,
    collective=collectives,
    touched=st.booleans(),
)
NAMES = ("kind", "call", "seconds", "thread", "others", "touched", "collective")
BARRIER = Collective("barrier", "0", (0, 1), shapes=((2,),))
EVENT = events.Writer().row(Event(0, "enter", 0, 0.5, 1, 0, BARRIER))


def through_json(rows, reader=None):
    frame = Frame("events", json.loads(json.dumps({"events": rows})))
    return (reader or events.Reader(rank=3)).read(frame)


def changed(row, names, **values):
    """Return the row with these values replaced."""
    return [values.get(name, value) for name, value in zip(names, row, strict=True)]


def entering(**values):
    """Return the row of a numbered barrier, with these values replaced."""
    return [*EVENT[:-1], changed(EVENT[-1], ("kept", *events.FIELDS), **values)]


@given(st.lists(enters, max_size=5))
def test_events_are_read_as_they_were_written(sent):
    writer, reader = events.Writer(), events.Reader(rank=3)

    for _ in range(2):  # the second time by number
        assert through_json([writer.row(event) for event in sent], reader) == sent


def test_a_collective_is_sent_in_full_once():
    writer, reader = events.Writer(), events.Reader(rank=3)

    rows = [writer.row(Event(3, "enter", call, 0.5, 1, 0, BARRIER)) for call in range(3)]

    assert [row[-1] for row in rows[1:]] == [0, 0]
    assert [event.collective for event in through_json(rows, reader)] == [BARRIER] * 3


def test_large_or_too_many_collectives_are_always_sent_in_full():
    writer, reader = events.Writer(), events.Reader(rank=3)
    many = [entered(tag=tag) for tag in range(events.MAX_KNOWN + 1)]
    heavy = entered(shapes=((),) * events.MAX_TENSORS)

    rows = [writer.row(event) for event in [*many, heavy] * 2]

    again = rows[len(many) + 1 :]
    assert [row[-1] for row in again[: events.MAX_KNOWN]] == list(range(events.MAX_KNOWN))
    assert all(type(row[-1]) is list for row in again[events.MAX_KNOWN :])
    assert [event.collective for event in through_json(rows[: len(many)], reader)] == [
        event.collective for event in many
    ]


@pytest.mark.parametrize("kind", ["wait", "exit"])
def test_only_entering_carries_a_collective(kind):
    event = Event(3, kind, 1, 0.5, 7, 2)

    assert through_json([events.Writer().row(event)]) == [event]


def test_an_event_belongs_to_the_rank_of_the_channel():
    assert through_json([events.Writer().row(Event(9, "exit", 1, 0.5, 7))])[0].rank == 3


@pytest.mark.parametrize(
    "rows",
    [None, {}, "enter", [None], ["enter"], [[]], [{}], [EVENT[:-1]], [[*EVENT, 0]], [EVENT] * 5000],
    ids=lambda rows: str(rows)[:20],
)
def test_anything_but_a_list_of_events_is_refused(rows):
    with pytest.raises(WireError):
        through_json(rows)


@pytest.mark.parametrize(
    "lie",
    [
        {"kind": "sleep"},
        {"kind": ["enter"]},
        {"call": "1"},
        {"call": True},
        {"call": 2**70},
        {"seconds": "now"},
        {"seconds": float("nan")},
        {"seconds": 1e300},
        {"thread": None},
        {"others": 1.5},
        {"collective": None},
        {"collective": []},
        {"collective": {}},
        {"collective": EVENT[-1][:-1]},
        {"collective": 0},
        {"collective": -1},
        {"collective": False},
    ],
    ids=str,
)
def test_a_field_of_the_wrong_type_is_refused(lie):
    with pytest.raises(WireError):
        through_json([changed(EVENT, NAMES, **lie)])


@pytest.mark.parametrize(
    "lie",
    [
        {"op": 3},
        {"op": None},
        {"members": "01"},
        {"members": [0.5]},
        {"members": [0] * 257},
        {"ranks": [0.5]},
        {"strides": [2]},
        {"shapes": [2]},
        {"shapes": [[2.5]]},
        {"shapes": [[1] * 65]},
        {"shapes": [[]] * 5000},
        {"dtype": ["float32"]},
        {"root": "0"},
        {"tag": None},
        {"sends": 2},
        {"receives": ["2"]},
        {"where": 3},
    ],
    ids=lambda lie: str(lie)[:20],
)
def test_a_collective_with_wrong_types_is_refused(lie):
    with pytest.raises(WireError):
        through_json([entering(**lie)])


def test_too_many_numbered_collectives_are_refused():
    with pytest.raises(WireError):
        through_json([entering(shapes=[[]] * events.MAX_TENSORS)])
    with pytest.raises(WireError):
        through_json([EVENT] * (events.MAX_KNOWN + 1))


def test_a_long_name_is_cut():
    [event] = through_json([entering(op="x" * 10_000)])

    assert event.collective.op == "x" * events.MAX_TEXT


def test_lone_surrogates_are_replaced():
    assert events.text("\ud800!").encode() == b"?!"


def entered(**fields):
    fields = {"op": "all_gather", "group": "0", "members": tuple(range(16)), **fields}
    return Event(0, "enter", 0, 0.5, 1, 0, Collective(**fields))


def test_a_usual_event_has_the_weight_1():
    assert events.weight(Event(0, "exit", 0, 0.5, 1)) == 1
    assert events.weight(entered(shapes=((64, 32),), where="template_trainer.py:91")) <= 2


@pytest.mark.parametrize(
    "much",
    [
        {"shapes": ((),) * events.MAX_TENSORS},
        {"shapes": ((2**63,) * events.MAX_SIDES,) * 8},
        {"op": "x" * 200, "group": "x" * 200, "label": "x" * 200, "where": "x" * 200},
        {"members": tuple(range(2**63, 2**63 + events.MAX_RANKS))},
        {"callers": ("x" * 200,) * events.MAX_CALLERS},
    ],
    ids=lambda much: next(iter(much)),
)
def test_a_large_event_weighs_more(much):
    assert events.weight(entered(**much)) > events.weight(entered())


def test_a_light_event_keeps_the_number_of_elements():
    heavy = entered(shapes=((2, 3),) * 1000, dtype="float32", label="weight")

    assert events.light(heavy) == entered(shapes=((6000,),), dtype="float32", label="weight")
    assert events.weight(events.light(heavy)) == 1
    assert events.light(Event(0, "exit", 0, 0.5, 1)) == Event(0, "exit", 0, 0.5, 1)


def test_the_last_events_are_kept_up_to_a_total_weight():
    light, heavy = Event(0, "exit", 0, 0.5, 1), entered(shapes=((),) * 4096)

    assert events.last([heavy, light, light], 5) == (light, light)
    assert events.last([light, heavy], 5) == ()
    assert events.last([light, light], 2) == (light, light)
