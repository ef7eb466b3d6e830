"""The drawing of a run's collectives."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_samples import SCRIPT, call, collective, deadlock, long_run

from gradsync.records import Collective, Event
from gradsync.reports.timeline import collectives

NAMESPACE = "{http://www.w3.org/2000/svg}"
BOTH = {"members": (0, 1)}


class Picture:
    """A rendered timeline, with access to its parts."""

    def __init__(self, events, world_size: int) -> None:
        self.source = collectives.render(events, world_size)
        self.root = ElementTree.fromstring(self.source)

    def of(self, tag: str, kind: str) -> list[ElementTree.Element]:
        return [part for part in self.root.iter(NAMESPACE + tag) if part.get("class") == kind]

    def labels(self) -> list[str]:
        return [part.text for part in self.of("text", "label")]

    def words(self) -> list[str]:
        return [part.text for part in self.root.iter(NAMESPACE + "text")]

    def tooltips(self) -> list[str]:
        return [part.text for part in self.root.iter(NAMESPACE + "title")]

    def bars(self) -> list[tuple[float, float, float]]:
        """Return top, left and right of each bar."""
        shapes = [part.attrib for part in self.of("rect", "bar") if float(part.get("height")) > 10]
        return [(float(s["y"]), float(s["x"]), float(s["x"]) + float(s["width"])) for s in shapes]


def rounds(count: int, length: float = 0.001, pause: float = 0.0005) -> list[Event]:
    """Return the events of two ranks with `count` collectives."""
    step = length + pause
    return [
        event
        for number in range(count)
        for rank in range(2)
        for event in call(rank, number, number * step, number * step + length, collective(**BOTH))
    ]


def test_a_run_without_collectives_has_no_picture():
    assert collectives.render((), 4) == ""


def test_each_rank_has_its_lane():
    names = [part.text for part in Picture(deadlock(), 4).of("text", "name")]

    assert names == ["rank 0", "rank 1", "rank 2", "rank 3"]


def test_each_rank_has_its_own_colour():
    styles = re.findall(r"--rank:(#\w+)", collectives.render(deadlock(), 4))

    assert len(set(styles)) == 4


def test_a_bar_has_the_name_used_in_explanations():
    assert Picture(rounds(2), 2).labels() == ["all_reduce #1", "all_reduce #2"] * 2


def test_a_label_names_the_tensor_if_there_is_room():
    events = call(0, 0, 0.0, 0.1, collective(members=(0,), label="fc1.weight"))

    assert Picture(events, 1).labels() == ["all_reduce #1 fc1.weight"]


def test_each_group_counts_its_own_collectives():
    row = collective(group="row", **BOTH)
    events = [
        *call(0, 0, 0.0, 0.1, collective(**BOTH)),
        *call(0, 1, 0.2, 0.3, row),
        *call(0, 2, 0.4, 0.5, row),
    ]

    assert Picture(events, 2).labels() == ["all_reduce #1", "all_reduce #1", "all_reduce #2"]


def test_a_tooltip_has_all_details():
    what = collective(
        "broadcast", members=(0,), via="load", label="fc1.weight", root=0, reduce=None
    )

    assert Picture(call(0, 0, 0.1, 0.102, what), 1).tooltips() == [
        "rank 0: broadcast #1\n"
        "in load · fc1.weight · float32 · [10] · root 0 · group world\n"
        "at template_trainer.py:91\n"
        "took 2 ms, starting at 100 ms"
    ]


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"callers": ("train",)}, "at template_trainer.py:91"),
        ({"callers": ("train", "step")}, "at template_trainer.py:91, train -> step"),
        ({"where": None, "by_test": True}, "in the test itself"),
    ],
)
def test_a_tooltip_names_the_caller(more, line):
    what = collective("broadcast", members=(0,), **more)

    [tip] = Picture(call(0, 0, 0.1, 0.102, what), 1).tooltips()

    assert line in tip.splitlines()


def test_a_deadlock_shows_who_waits_to_the_edge_and_the_missing_call():
    seen = Picture(deadlock(missing=1), 4)
    rights = sorted(right for _, _, right in seen.bars())

    assert len(seen.of("path", "hatch")) == 3 + 1  # the waiting ranks, and the legend
    assert rights[-3:] == [rights[-1]] * 3
    assert "still waiting" in seen.words()
    assert "never called all_reduce #4" in seen.labels()
    assert any(tip.startswith("rank 1 never called all_reduce #4") for tip in seen.tooltips())


def test_the_drawing_is_described_in_words():
    seen = Picture(deadlock(), 4).root.get("aria-label")

    assert seen == (
        "The collectives of 4 ranks over time. Rank 1 never called all_reduce #4."
        " Rank 0 is still waiting in all_reduce #4. Rank 2 is still waiting in all_reduce #4."
        " Rank 3 is still waiting in all_reduce #4."
    )


def test_a_wide_drawing_says_that_its_end_is_on_the_right():
    hint = "the end of the run is on the right"

    assert hint in Picture(long_run(), 4).words()
    assert hint not in Picture(deadlock(), 4).words()


def test_there_is_no_gap_without_a_waiting_rank():
    events = [*rounds(2), *call(0, 2, 0.1, 0.2, collective(**BOTH))]

    assert not Picture(events, 2).of("rect", "gap")


def test_a_rank_outside_a_group_has_no_gap():
    events = call(0, 0, 0.0, None, collective(members=(0, 2)))

    assert len(Picture(events, 3).of("rect", "gap")) == 1 + 1  # rank 2, and the legend


def test_a_missing_message_is_a_gap_for_a_send():
    events = call(1, 0, 0.0, None, collective("recv", peer=0))

    assert "never called send #1" in Picture(events, 2).labels()


def test_a_send_and_its_receive_belong_together():
    events = [
        *call(0, 0, 0.0, 0.1, collective("send", peer=1)),
        *call(1, 0, 0.0, 0.1, collective("recv", peer=0)),
    ]

    assert len(Picture(events, 2).of("path", "operation")) == 1


def test_a_band_joins_the_same_collective_across_ranks():
    assert len(Picture(rounds(3), 2).of("path", "operation")) == 3


def test_different_calls_in_one_meeting_are_joined_in_red():
    events = [
        *call(0, 0, 0.0, None, collective(label="fc1.weight.grad", **BOTH)),
        *call(1, 0, 0.0, None, collective(label="fc1.bias.grad", **BOTH)),
    ]
    seen = Picture(events, 2)

    assert len(seen.of("path", "differs")) == 1
    assert "calls that do not match" in seen.words()


def test_a_long_run_shows_its_end_and_says_so():
    seen = Picture(rounds(50), 2)

    assert seen.labels()[0] == "#11"
    assert len(seen.bars()) == 2 * 40
    assert "the last 40 collectives of each rank; 20 earlier ones are not drawn" in seen.words()


def test_a_long_pause_is_shortened():
    events = [*rounds(4), *call(0, 4, 60.0, 60.001, collective(**BOTH))]
    seen = Picture(events, 2)
    last = max(seen.bars(), key=lambda bar: bar[2])

    assert last[1] - sorted(right for _, _, right in seen.bars())[-2] < 300
    assert "// a shortened pause" in seen.words()


@pytest.mark.parametrize("length", [1e-7, 1e-3, 10.0])
def test_bars_of_one_lane_never_overlap_and_are_wide_enough_to_see(length):
    bars = Picture(rounds(12, length, pause=length / 100), 2).bars()
    lanes = {top: sorted(bar for bar in bars if bar[0] == top) for top, _, _ in bars}

    assert all(right - left >= 30 for _, left, right in bars)
    assert all(a[2] <= b[1] for lane in lanes.values() for a, b in pairwise(lane))


def test_overlapping_collectives_are_drawn_in_different_rows():
    events = [
        event
        for number in range(3)
        for event in call(0, number, number * 0.001, 0.01 + number * 0.001, collective(**BOTH))
    ]

    assert len({top for top, _, _ in Picture(events, 1).bars()}) == 3


def test_close_times_have_different_labels():
    axis = [part.text for part in Picture(rounds(3, 1e-5, 1e-5), 2).of("text", "quiet")]

    assert axis[:2] == ["ms", "0.000"]
    assert len(set(axis)) == len(axis)


def test_hostile_texts_are_escaped():
    what = Collective(SCRIPT, SCRIPT, (0,), label='"><img src=x>\x00\ud800', where=SCRIPT)

    seen = Picture(call(0, 0, 0.0, 1.0, what), 1)

    assert "<script" not in seen.source
    assert "<img" not in seen.source
    assert SCRIPT in seen.tooltips()[0]


def test_invalid_events_are_ignored():
    events = [Event(0, "exit", 5, 1.0, 1), *call(9, 0, 0.0, 1.0), *rounds(1)]

    assert len(Picture(events, 2).bars()) == 2


def test_a_world_too_large_to_draw_is_cut():
    names = Picture(rounds(1), 10**9).of("text", "name")

    assert len(names) == 64


anything = st.integers(-3, 5) | st.integers(-(2**63), 2**63)
any_collective = st.builds(
    Collective,
    op=st.sampled_from(["all_reduce", "send", "recv", "barrier"]) | st.text(max_size=8),
    group=st.text(max_size=2),
    members=st.lists(anything, max_size=4).map(tuple),
    shapes=st.lists(st.lists(anything, max_size=3).map(tuple), max_size=2).map(tuple),
    dtype=st.none() | st.text(max_size=3),
    root=st.none() | anything,
    peer=st.none() | anything,
    label=st.none() | st.text(max_size=5),
)
events_of_any_kind = st.builds(
    Event,
    rank=anything,
    kind=st.sampled_from(["enter", "wait", "exit"]),
    call=anything,
    seconds=st.floats(),
    thread=st.just(1),
    collective=st.none() | any_collective,
)


@settings(max_examples=150, deadline=None)
@given(events=st.lists(events_of_any_kind, max_size=30), world_size=st.integers(-1, 5))
def test_the_drawing_is_well_formed_for_any_events(events, world_size):
    seen = collectives.render(events, world_size)

    assert seen == "" or ElementTree.fromstring(seen).tag == NAMESPACE + "svg"
    assert not re.search(r'="[^"]*\b(?:nan|inf)\b', seen)
