"""How a suite is run on a submission."""

from gradsync.grading import Collector

pytest_plugins = "pytester"


def test_early_tests_run_first_and_are_told_in_their_place(pytester):
    pytester.makepyfile(
        """
        from gradsync.testing import early, exercise

        @exercise("phase1/train", points=1)
        def test_one(): pass

        @early
        @exercise("phase1/train", points=1)
        def test_two(): pass
        """
    )
    collector = Collector(None)

    result = pytester.runpytest_inprocess("--strict-markers", "-v", plugins=[collector])

    result.stdout.fnmatch_lines(["*::test_two PASSED*", "*::test_one PASSED*"])
    assert [v.id.split("::")[1] for v in collector.verdicts] == ["test_one", "test_two"]


def test_the_tests_of_one_exercise_are_picked(pytester):
    pytester.makepyfile(
        """
        from gradsync.testing import exercise

        @exercise("phase1/train", points=1)
        def test_one(): pass

        @exercise("phase1/evaluate", points=1)
        def test_two(): pass

        def test_three(): pass
        """
    )
    collector = Collector("phase1/evaluate")

    pytester.runpytest_inprocess(plugins=[collector]).assert_outcomes(passed=1)

    assert [verdict.exercise for verdict in collector.verdicts] == ["phase1/evaluate"]
