"""Compute and waits of a run, as a drawing and as a trace for Perfetto."""

import json
from xml.etree import ElementTree

import pytest

from gradsync.records import Collective, Event
from gradsync.reports.timeline import chrome_trace, overlap, spans

MAIN, HOOK = 11, 12  # threads


def event(kind, call, seconds, thread=MAIN, rank=0):
    made = Collective("all_reduce", "world", (0, 1)) if kind == "enter" else None
    return Event(rank, kind, call, seconds, thread, collective=made)


def overlapping(rank):
    """Two all-reduces start at 1 and 2 s while the rank computes; it waits from 3 to 5 s."""
    return [
        event("enter", 0, 1.0, rank=rank),
        event("enter", 1, 2.0, HOOK, rank),
        event("wait", 0, 3.0, rank=rank),
        event("exit", 0, 4.0, rank=rank),
        event("wait", 1, 4.0, rank=rank),
        event("exit", 1, 5.0, rank=rank),
        event("enter", 2, 6.0, rank=rank),
        event("exit", 2, 6.0, rank=rank),
    ]


EVENTS = overlapping(0) + overlapping(1)


def test_waits_are_joined_and_the_rest_is_compute():
    assert spans.blocked(EVENTS, 0) == [(3.0, 5.0)]
    assert spans.computing(EVENTS, 0) == [(1.0, 3.0), (5.0, 6.0)]


def test_another_threads_wait_does_not_stop_the_main_thread():
    events = [event("enter", 0, 1.0), event("wait", 0, 1.0, HOOK), event("exit", 0, 4.0)]

    assert spans.blocked(events, 0) == []
    assert spans.computing(events, 0) == [(1.0, 4.0)]


def test_an_endless_wait_lasts_to_the_end_of_the_run():
    events = [event("enter", 0, 1.0), event("wait", 0, 2.0), event("exit", 9, 8.0, rank=1)]

    assert spans.blocked(events, 0) == [(2.0, 8.0)]


def test_a_line_says_how_much_each_rank_waited():
    assert spans.waiting(EVENTS, 2) == ("Time spent waiting: rank 0 40%, rank 1 40%")


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_run_without_collectives_has_no_spans(ranks):
    assert spans.waiting([], ranks).count("0%") == ranks
    assert overlap.render([], ranks) == ""


def test_perfetto_gets_microseconds_by_rank_and_row():
    shown = json.loads(chrome_trace.render(EVENTS, 2))["traceEvents"]

    complete = [row for row in shown if row["ph"] == "X" and row["pid"] == 1]
    assert [(r["name"], r["ts"], r["dur"]) for r in complete if r["tid"] == 0] == [
        ("compute", 1e6, 2e6),
        ("compute", 5e6, 1e6),
        ("waits", 3e6, 2e6),
    ]
    assert {r["name"]: r["tid"] for r in complete if r["tid"] > 0} == {
        "all_reduce #1": 1,
        "all_reduce #2": 2,  # it overlaps the first
        "all_reduce #3": 1,
    }
    names = {row["args"]["name"] for row in shown if row["name"] == "process_name"}
    assert names == {"rank 0", "rank 1"}


def test_the_drawing_has_all_events_on_a_linear_axis():
    drawing = ElementTree.fromstring(overlap.render(EVENTS, 2))

    boxes = [e for e in drawing.iter() if e.tag.endswith("rect")]
    by_kind = {
        kind: [float(box.get("width")) for box in boxes if box.get("class") == kind]
        for kind in ("compute", "waits", "bar")
    }
    assert {kind: len(widths) for kind, widths in by_kind.items()} == {
        "compute": 2 * 2 + 1,  # and one in the legend
        "waits": 2 + 1,
        "bar": 2 * 3 + 1,
    }
    assert by_kind["compute"][0] == pytest.approx(2 * by_kind["compute"][1], rel=0.01)
