"""What the pytest plugin does to a suite."""

pytest_plugins = "pytester"


def test_early_tests_run_first_and_the_others_in_their_order(pytester):
    pytester.makepyfile(
        """
        from gradsync.testing import early

        def test_one(): pass

        def test_two(): pass

        @early
        def test_three(): pass
        """
    )

    result = pytester.runpytest_subprocess("--strict-markers", "-v")

    result.stdout.fnmatch_lines(["*::test_three PASSED*", "*::test_one PASSED*", "*::test_two*"])


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
