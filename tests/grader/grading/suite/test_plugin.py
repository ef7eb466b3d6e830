"""The grader's pytest plugin in a suite."""

import pytest

pytest_plugins = "pytester"
PLUGIN = ("-p", "gradsync.grading.suite.plugin")


def test_points_are_divided_among_parameter_sets(pytester):
    pytester.makepyfile(
        """
        import pytest
        from gradsync.grading.suite.plugin import POINTS
        from gradsync.testing import exercise

        @exercise("phase1/train", points=3)
        @pytest.mark.parametrize("world_size", [1, 2])
        def test_it(request, world_size):
            assert request.node.stash[POINTS] == 1.5
        """
    )

    pytester.runpytest_subprocess(*PLUGIN, "--submission=.").assert_outcomes(passed=2)


def test_the_ranks_values_are_freed_after_a_test(pytester):
    pytester.makepyfile(
        """
        import weakref
        from gradsync.records import Observation
        from gradsync.testing import exercise

        kept = []

        @exercise("phase1/train", points=1)
        def test_it(ranks):
            ranks.seen.append(Observation(1, (b"much",), (), ("",), 0.1))
            kept.append(weakref.ref(ranks.seen[0]))

        def test_it_is_gone():
            assert kept[0]() is None
        """
    )

    pytester.runpytest_subprocess(*PLUGIN, "--submission=.").assert_outcomes(passed=2)


@pytest.mark.slow
def test_random_numbers_on_ranks_depend_on_the_seed(pytester):
    pytester.makepyfile(
        """
        import random
        from pathlib import Path

        import numpy as np
        import torch

        def test_it(ranks):
            def draw():
                return random.random(), np.random.random(), torch.rand(()).item()

            seen = [tuple(drawn) for _ in range(2) for drawn in ranks(draw, 2)]
            assert len({number for drawn in seen for number in drawn}) == 12
            with Path("drawn").open("a") as file:
                print(seen, file=file)
        """
    )

    for seed in (5, 5, 6):
        pytester.runpytest_subprocess(*PLUGIN, "--submission=.", f"--seed={seed}").assert_outcomes(
            passed=1
        )

    one, again, other = (pytester.path / "drawn").read_text().splitlines()
    assert one == again != other
