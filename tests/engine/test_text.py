"""How ranks, counts, sizes and lists are written in a sentence."""

import pytest

from gradsync.text import counted, full_stop, in_list, listed, no_float, ranks_text, size_text, verb


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([1], "rank 1"),
        ([2, 1], "ranks 1 and 2"),
        ([0, 1, 3], "ranks 0, 1 and 3"),
        ([0, 1, 2], "ranks 0, 1 and 2"),
        (range(4), "ranks 0-3"),
        ({0, 2, 3, 4, 5}, "ranks 0 and 2-5"),
        ([0, 1, 2, 3, 6, 7], "ranks 0-3, 6 and 7"),
        ((), "no rank"),
    ],
)
def test_ranks_read_as_a_list_and_long_runs_as_a_range(ranks, text):
    assert ranks_text(ranks) == text


def test_a_sentence_can_begin_with_ranks():
    assert ranks_text([1, 2]).capitalize() == "Ranks 1 and 2"


def test_a_noun_agrees_with_its_number():
    assert counted(1, "step") == "1 step"
    assert counted(0, "step") == "0 steps"
    assert counted(1234, "index", "indices") == "1,234 indices"


def test_a_verb_agrees_with_its_subjects():
    assert verb([3], "is", "are") == "is"
    assert verb([0, 3], "is", "are") == "are"


@pytest.mark.parametrize(
    ("items", "text"),
    [([], "none"), ([1], "1"), (["a", "b"], "a and b"), ("abc", "a, b and c")],
)
def test_a_list_has_one_and(items, text):
    assert listed(items) == text


def test_a_list_can_be_of_alternatives():
    assert listed(["x", "y", "z"], "or") == "x, y or z"


@pytest.mark.parametrize(
    ("text", "ended"), [("It failed", "It failed."), ("Really?\n", "Really?"), ("Yes.", "Yes.")]
)
def test_a_sentence_ends_with_one_mark(text, ended):
    assert full_stop(text) == ended


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (2**18, "256 KiB"),
        (3 * 2**19, "1.5 MiB"),
        (2**31, "2 GiB"),
        (2**60, "1048576 TiB"),
    ],
)
def test_sizes_use_the_largest_unit_that_fits(size, text):
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        (["str", "int", "str"], "f returns an int or a str. It must return a float."),
        (["Tensor"], "f returns a Tensor. It must return a float. Call `.item()` on the tensor."),
        (["NoneType"], "f returns None. It must return a float. Did you forget `return`?"),
    ],
)
def test_a_result_of_the_wrong_type_may_lack_a_return(kinds, text):
    assert no_float("f", kinds) == text


def test_a_name_with_a_comma_reads_as_one_in_a_list():
    assert listed(map(in_list, ["Müller, Anna", "Bob"])) == '"Müller, Anna" and Bob'
