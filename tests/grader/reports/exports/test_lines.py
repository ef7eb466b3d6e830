"""Integers that add up to a rounded score."""

from hypothesis import given
from hypothesis import strategies as st

from gradsync.reports.exports.lines import whole_points

POINTS = st.lists(st.integers(0, 500).map(lambda cents: cents / 100), min_size=1, max_size=30)


@given(POINTS)
def test_the_sum_is_the_rounded_score_and_each_part_is_near_its_own(parts):
    points = whole_points(parts, sum(parts))

    assert sum(points) == round(sum(parts))
    assert all(abs(point - part) <= 1.5 for point, part in zip(points, parts, strict=True))


@given(POINTS, st.data())
def test_no_part_exceeds_its_cap(most, data):
    parts = [data.draw(st.floats(0, high)) for high in most]
    caps = whole_points(most, sum(most))

    points = whole_points(parts, sum(parts), caps)

    assert all(0 <= point <= cap for point, cap in zip(points, caps, strict=True))


def test_nothing_is_divided_into_nothing():
    assert whole_points([], 0.0) == []
    assert whole_points([0.0, 0.0], 0.0) == [0, 0]
