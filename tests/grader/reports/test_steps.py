"""The steps in a trace: where they begin and end, and what their ranks wait for."""

from xml.etree.ElementTree import Element

import pytest

from gradsync.records import Collective, Event
from gradsync.reports.timeline import overlap, svg
from gradsync.reports.timeline.steps import sentences, steps_of

MAIN = 11  # thread
LABEL = "fc1.weight.grad"


def run_of(*ranks, steps=3):
    """Return the events of steps of one second.

    Each rank has (start, wait, end) of its collective in a step. Before the steps, all ranks take
    part in a broadcast, which ends at 0.5 s.
    """
    events = []
    for rank, times in enumerate(ranks):
        calls = [("broadcast", None, (0.1, 0.1, 0.5))]
        calls += [("all_reduce", LABEL, tuple(0.5 + n + t for t in times)) for n in range(steps)]
        for call, (op, label, (start, wait, end)) in enumerate(calls):
            made = Collective(op, "world", (0, 1), ((8,),), "float32", label=label)
            events.append(Event(rank, "enter", call, start, MAIN, collective=made))
            events.append(Event(rank, "wait", call, wait, MAIN))
            events.append(Event(rank, "exit", call, end, MAIN))
    return events


BLOCKING = (0.6, 0.6, 1.0)


def said(*ranks):
    events = run_of(*ranks)
    return " ".join(sentences(events, len(ranks), steps_of(events, len(ranks), 3)))


def test_a_step_lasts_from_the_end_of_one_to_the_end_of_the_next():
    assert steps_of(run_of(BLOCKING, BLOCKING), 2, 3) == [(0.5, 1.5), (1.5, 2.5), (2.5, 3.5)]


@pytest.mark.parametrize("count", [2, 4])
def test_without_a_collective_in_each_step_there_are_no_steps(count):
    assert steps_of(run_of(BLOCKING, BLOCKING), 2, count) == []
    assert steps_of([], 2, count) == []


def test_a_wait_in_which_nothing_is_computed_asks_for_buckets():
    assert said(BLOCKING, BLOCKING) == (
        f"A step takes 1e+03 ms. Rank 0 waits for 40% of it, all of it in all_reduce of {LABEL}. "
        "Nothing is computed meanwhile; sending gradients in buckets, each as soon as backward "
        "has computed it, would hide it."
    )


def test_communication_that_is_hidden_in_part_is_measured():
    assert "Computation hides 75% of the communication" in said((0.2, 0.8, 1.0), (0.2, 0.8, 1.0))


def test_communication_that_is_hidden_needs_no_advice():
    assert "No rank waits long" in said((0.2, 0.98, 1.0), (0.2, 0.98, 1.0))


def test_a_rank_that_arrives_late_is_named():
    assert "Most of this is waiting for rank 1, which arrives later" in said(
        (0.2, 0.2, 1.0), (0.9, 0.9, 1.0)
    )


def test_the_drawing_names_steps_and_tensors_and_has_round_ticks():
    events = run_of(BLOCKING, BLOCKING)
    shown = [(f"step {n}", span) for n, span in enumerate(steps_of(events, 2, 3), 1)][-2:]

    drawing = overlap.render(events, 2, shown)

    assert drawing.count(f">all_reduce {LABEL}<") == 4  # two steps of two ranks
    assert ">step 2<" in drawing
    assert ">step 1<" not in drawing
    assert ">200<" in drawing
    assert ">1,800<" in drawing


@pytest.mark.parametrize(
    ("span", "last", "count"),
    [(0.0156, 0.014, 8), (0.116, 0.1, 6), (1.0, 1.0, 11), (0.0003, 0.0003, 7), (0, 0, 1)],
)
def test_ticks_are_round_and_few(span, last, count):
    drawing = Element("svg")
    svg.axis(drawing, 0, 0, 100, span)

    _, *shown = [text.text for text in drawing.iter("text")]  # after the unit
    found = [float(text.replace(",", "")) for text in shown]
    assert found[-1] == pytest.approx(last * 1000)
    assert len(found) == count
