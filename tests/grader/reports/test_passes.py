"""The schedule of a pipeline: its drawing, its bubble, and the microbatches that are kept."""

from xml.etree import ElementTree

from gradsync.reports.timeline.passes import Pass, render, sentences


def schedule(*ranks):
    return [[Pass(*one) for one in mine] for mine in ranks]


TWO = schedule(
    [("forward", 1, 0, 1), ("forward", 2, 1, 2), ("backward", 1, 4, 6), ("backward", 2, 7, 9)],
    [("forward", 1, 1, 2), ("backward", 1, 2, 4), ("forward", 2, 4, 5), ("backward", 2, 5, 7)],
)


def test_the_bubble_is_the_share_of_the_step_in_which_no_pass_runs():
    assert sentences(TWO) == [
        "The bubble, in which ranks have nothing to compute, is 33% of the step.",
        "With 2 microbatches on 2 ranks, it is at least 33%; "
        "messages between the stages, and another order of passes, add to it.",
        "Rank 0 keeps the activations of up to 2 microbatches.",
    ]


def test_passes_are_drawn_at_their_times():
    drawing = ElementTree.fromstring(render(TWO))

    boxes = [box for box in drawing.iter() if box.get("class") in ("forward", "backward")][:-2]
    lefts = [round((float(box.get("x")) - 62) / 1100 * 9) for box in boxes]
    widths = [round(float(box.get("width")) / 1100 * 9) for box in boxes]
    assert lefts == [0, 1, 4, 7, 1, 2, 4, 5]
    assert widths == [1, 1, 2, 2, 1, 2, 1, 2]


def test_a_failed_run_may_have_no_passes():
    assert render(schedule([], [])) == ""
    assert sentences(schedule([], [])) == ["No stage ran forward."]
