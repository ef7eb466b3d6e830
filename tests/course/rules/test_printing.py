"""Which ranks printed during a training run, to stdout and to stderr."""

import pytest

from support.rules.printing import other_lines

GUIDE = "Training"
ROW = {"epoch": 0.0, "train_loss": 1.23456, "val_loss": 0.9876, "val_accuracy": 1 / 3}


@pytest.mark.parametrize(("lines", "ranks"), [([["a"], ["a"]], (1,)), ([[], []], (0,))])
def test_ranks_that_print_too_much_or_too_little_are_named(lines, ranks):
    seen = [{"lines": own, "history": []} for own in lines]

    assert other_lines(seen, ["", ""], 1, GUIDE).ranks == ranks


def test_a_line_is_shown_as_it_was_printed():
    seen = [{"lines": lines, "history": []} for lines in (["0"], ["one"], ["two", "more"])]

    found = other_lines(seen, ["", "", ""], 1, GUIDE)

    assert found.explanation.startswith("Ranks 1 and 2 printed during training, for example 'two'.")


@pytest.mark.parametrize(
    "line", ["Epoch 0", "{'epoch': 0}", "loss=1.235", "acc 33.3%", "acc 33.33 %", "0, 0.9876"]
)
def test_only_rank_0_may_print_an_epoch_to_stderr(line):
    seen = [{"lines": [], "history": [ROW]}] * 2

    assert other_lines(seen, [line, ""], 1, GUIDE) is None
    assert other_lines(seen, [line, line], 1, GUIDE).ranks == (1,)


def test_only_the_expected_epochs_of_a_history_are_searched():
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
def test_warnings_on_stderr_do_not_count(line):
    seen = [{"lines": own, "history": [ROW]} for own in (["epoch 0"], [])]

    assert other_lines(seen, ["", line], 1, GUIDE) is None


def test_rank_0_may_print_more_than_one_line_for_each_epoch():
    seen = [{"lines": ["epoch  loss", "0  1.23", "done in 3 s"], "history": [ROW]}]

    assert other_lines(seen, [""], 1, GUIDE) is None
