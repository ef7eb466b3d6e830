"""Who printed during a training, on stdout and on stderr."""

import pytest

from gradsync.diagnose.printing import other_lines

GUIDE = "Training"
ROW = {"epoch": 0.0, "train_loss": 1.23456, "val_loss": 0.9876, "val_accuracy": 1 / 3}


@pytest.mark.parametrize(("lines", "ranks"), [([["a"], ["a"]], (1,)), ([[], []], (0,))])
def test_who_prints_too_much_or_too_little_is_named(lines, ranks):
    seen = [{"lines": own, "history": []} for own in lines]

    assert other_lines(seen, ["", ""], 1, GUIDE).ranks == ranks


def test_a_line_is_shown_as_it_was_printed():
    seen = [{"lines": lines, "history": []} for lines in (["0"], ["one"], ["two", "more"])]

    found = other_lines(seen, ["", "", ""], 1, GUIDE)

    assert found.explanation.startswith("Ranks 1 and 2 printed during training, for example 'two'.")


@pytest.mark.parametrize(
    "line", ["Epoch 0", "{'epoch': 0}", "loss=1.235", "acc 33.3%", "acc 33.33 %", "0, 0.9876"]
)
def test_on_stderr_too_rank_0_alone_tells_of_an_epoch(line):
    seen = [{"lines": [], "history": [ROW]}] * 2

    assert other_lines(seen, [line, ""], 1, GUIDE) is None
    assert other_lines(seen, [line, line], 1, GUIDE).ranks == (1,)


def test_a_history_that_is_too_long_is_not_looked_through():
    seen = [{"lines": ["a"], "history": [ROW] * 100_000}]

    assert other_lines(seen, ["loss=7.25 " * 10_000], 1, GUIDE) is None


@pytest.mark.parametrize(
    "line",
    [
        "[W1121 22:12:30.123456789 ProcessGroupGloo.cpp:514] Warning: no hostname (function)",
        "template_trainer.py:334: UserWarning: deprecated since torch 2.5.1, removed in 3.0",
        "  for epoch in range(3):",
    ],
)
def test_warnings_on_stderr_are_nobodys_line(line):
    seen = [{"lines": own, "history": [ROW]} for own in (["epoch 0"], [])]

    assert other_lines(seen, ["", line], 1, GUIDE) is None


def test_rank_0_may_print_more_than_a_line_an_epoch():
    seen = [{"lines": ["epoch  loss", "0  1.23", "done in 3 s"], "history": [ROW]}]

    assert other_lines(seen, [""], 1, GUIDE) is None
