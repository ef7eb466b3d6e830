"""Patches of known mistakes: code is found by its tokens, not by its layout."""

import pytest

from gradsync.course.patches import patched

SOURCE = '''\
def double(number):  # twice
    """Return it twice."""
    total = add(  # one line a number
        number,
        number,
    )
    return total  # "#"
'''


def test_comments_and_line_breaks_do_not_count():
    found = patched(SOURCE, "total = add(number, number,)", "total = 3 * number")

    assert '    total = 3 * number\n    return total  # "#"\n' in found


def test_code_that_begins_with_spaces_is_replaced_from_the_start_of_its_line():
    found = patched(SOURCE, "    return total", "    if total:\n        return total")

    assert found.endswith('    )\n    if total:\n        return total  # "#"\n')


def test_a_comment_in_the_code_to_find_does_not_count():
    assert patched(SOURCE, "return total  # the sum", "return 1").endswith('return 1  # "#"\n')


@pytest.mark.parametrize(
    ("old", "times"),
    [("number", 3), ("add(number)", 0), ("numb", 0), ("# twice", 0)],
    ids=["several", "none", "a part of a name", "a comment alone"],
)
def test_code_that_is_not_found_exactly_once_is_refused(old, times):
    with pytest.raises(ValueError, match=f"found {times} times"):
        patched(SOURCE, old, "x")
