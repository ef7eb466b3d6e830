"""What the pytest plugin does to a suite."""

pytest_plugins = "pytester"


def test_a_points_worth_is_shared_among_parameter_sets(pytester):
    pytester.makepyfile(
        """
        import pytest
        from gradsync.plugin import POINTS
        from gradsync.testing import exercise

        @exercise("phase1/train", points=3)
        @pytest.mark.parametrize("world_size", [1, 2])
        def test_it(request, world_size):
            assert request.node.stash[POINTS] == 1.5
        """
    )

    pytester.runpytest_subprocess().assert_outcomes(passed=2)
