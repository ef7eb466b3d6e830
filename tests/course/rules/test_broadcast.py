"""Mistakes in broadcasting a model that show only in the bits of the tensors."""

import pytest
import torch

from gradsync.records import Collective, Event, Observation
from gradsync.testing.rules import first_diagnosis
from support.rules.broadcast import bits_differ, broadcast_mistakes, weight_not_sent

SOURCE = {"w": torch.tensor([-0.0, 1 / 3], dtype=torch.float64), "count": torch.tensor(2**40 + 1)}
OTHER = {"w": torch.tensor([float("nan"), 1.0]).double(), "count": torch.tensor(3)}


def observed(*values):
    return Observation(len(values), values, (), ("",) * len(values), 0.1)


def diagnose(*values):
    rules = broadcast_mistakes([SOURCE, OTHER], 0, ["count"])
    return first_diagnosis(observed(*values), [SOURCE] * 2, rules)


def test_rounding_to_float32_is_distinguished_from_a_missing_buffer():
    rounded = {name: tensor.float().to(tensor.dtype) for name, tensor in SOURCE.items()}

    found = diagnose(SOURCE, {**SOURCE, "count": rounded["count"]})
    left_out = diagnose(SOURCE, {**SOURCE, "count": OTHER["count"]})

    assert (found.code, found.ranks) == ("models-differ", (1,))
    assert "count arrived rounded" in found.explanation
    assert left_out.code == "buffers-not-broadcast"


def test_a_nan_from_another_rank_in_the_source_is_reported():
    mixed = {**SOURCE, "w": SOURCE["w"] + OTHER["w"]}

    assert "Rank 0 is the source, but its w became NaN" in diagnose(mixed, mixed).explanation
    assert "NaN" not in diagnose(SOURCE, mixed).explanation


def test_the_mean_of_the_models_is_reported():
    before = [{"w": torch.tensor([float(n)])} for n in (1, 2, 6)]

    found = first_diagnosis(
        observed(*[{"w": torch.tensor([3.0])}] * 3),
        before[:1] * 3,
        broadcast_mistakes(before, 0, []),
    )

    assert "the mean of the ranks' models" in found.explanation


@pytest.mark.parametrize(
    "changed", [torch.tensor([0.0, 1 / 3], dtype=torch.float64), SOURCE["w"].abs()]
)
def test_equal_numbers_with_different_bits_are_reported(changed):
    found = bits_differ(observed(SOURCE, {**SOURCE, "w": changed}), [SOURCE] * 2)

    assert (found.code, found.ranks) == ("models-differ", (1,))


def test_the_memory_layout_of_a_tensor_does_not_matter():
    images = torch.rand(2, 3, 2, 2)
    other = images.to(memory_format=torch.channels_last)

    assert bits_differ(observed({"w": other}, {"w": images}), [{"w": images}] * 2) is None


@pytest.mark.parametrize(
    ("ended", "code", "text"),
    [
        ((0, 0), None, ""),
        ((1, 1), "wrong-source", "first layer of rank 1. The default source is"),
        ((0, 1), "models-differ", "broadcast_model did nothing"),
        ((2, 2), "models-differ", "it is not rank 0's layer"),
    ],
)
def test_the_rank_whose_weight_was_sent_is_reported(ended, code, text):
    weights = [torch.full((2,), float(rank)) for rank in range(2)]
    values = [{"weight": torch.full((2,), float(end))} for end in ended]

    found = weight_not_sent(observed(*values), weights)

    assert (found and found.code) == code
    assert text in (found.explanation if found else "")


def test_a_part_from_another_source_is_distinguished_from_a_missing_one():
    found = diagnose(*[{**SOURCE, "count": OTHER["count"]}] * 2)

    assert (found.code, found.ranks) == ("wrong-source", (0, 1))
    assert "rank 1's count, but `src` is 0" in found.explanation


@pytest.mark.parametrize(
    ("line", "said"),
    [("trainer.py:9", "the collective at trainer.py:9 is complete"), (None, "no collective")],
)
def test_models_that_are_all_unchanged_are_reported(line, said):
    call = Collective("broadcast", "world", (0, 1), where=line)
    events = (Event(0, "enter", 0, 0.0, 1, collective=call),) if line else ()
    seen = Observation(2, (SOURCE, OTHER), events, ("", ""), 0.1)
    rules = broadcast_mistakes([SOURCE, OTHER], 0, ["count"])

    found = first_diagnosis(seen, [SOURCE] * 2, rules)

    assert (found.code, found.ranks, found.where) == ("models-differ", (1,), line)
    assert said in found.explanation


BEFORE = [
    {"w": torch.full((2,), float(rank)), "mean": torch.tensor([rank + 10.0])} for rank in (0, 1)
]


@pytest.mark.parametrize(
    ("after", "code"),
    [
        ([BEFORE[1], BEFORE[1]], "wrong-source"),
        ([BEFORE[0], {**BEFORE[1], "w": BEFORE[0]["w"]}], "buffers-not-broadcast"),
        ([BEFORE[0], {**BEFORE[1], "mean": BEFORE[0]["mean"]}], "models-differ"),
        (BEFORE, "models-differ"),
    ],
)
def test_each_mistake_in_broadcasting_has_its_code(after, code):
    rules = broadcast_mistakes(BEFORE, 0, ["mean"])

    assert first_diagnosis(observed(*after), [BEFORE[0]] * 2, rules).code == code
