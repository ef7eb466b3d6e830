"""Which tests of a suite run, and which verdicts are recorded."""

import pytest

from gradsync.grading.suite.collector import Collector

pytest_plugins = "pytester"
PLUGIN = ("-p", "gradsync.grading.suite.plugin")


@pytest.fixture(autouse=True, scope="module")
def compiler():
    """Import torch's compiler now: pytester removes new modules, and this one can't return."""
    import torch._dynamo  # noqa: F401


def test_early_tests_run_first_and_are_reported_in_order(pytester):
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
    collector = Collector()

    result = pytester.runpytest_inprocess(*PLUGIN, "--strict-markers", "-v", plugins=[collector])

    result.stdout.fnmatch_lines(["*::test_two PASSED*", "*::test_one PASSED*"])
    assert [v.id.split("::")[1] for v in collector.verdicts] == ["test_one", "test_two"]


@pytest.mark.parametrize(
    ("exercises", "picked"),
    [
        (["phase1/evaluate"], ["test_two", "test_two_more"]),
        (["phase1/train"], ["test_one"]),
        (["phase1/evaluate", "phase1/train"], ["test_two", "test_two_more", "test_one"]),
    ],
    ids=["evaluate", "train", "both, in this order"],
)
def test_only_tests_of_the_requested_exercises_run(pytester, exercises, picked):
    pytester.makepyfile(
        test_suite="""
        from gradsync.testing import exercise

        @exercise("phase1/train", points=1)
        def test_one(): pass

        @exercise("phase1/evaluate", points=1)
        def test_two(): pass

        @exercise("phase1/evaluate", points=1)
        def test_two_more(): pass

        def test_three(): pass
        """
    )
    collector = Collector(exercises)

    pytester.runpytest_inprocess(*PLUGIN, plugins=[collector]).assert_outcomes(passed=len(picked))

    assert [verdict.id.split("::")[1] for verdict in collector.verdicts] == picked


def test_files_without_a_test_of_the_requested_exercises_are_not_imported(pytester):
    wanted = """
        from gradsync.testing import exercise

        @exercise("phase1/train", points=1)
        def test_one(): pass
        """
    pytester.makepyfile(test_wanted=wanted, test_other="raise RuntimeError('imported')")

    pytester.runpytest_inprocess(*PLUGIN, plugins=[Collector(["phase1/train"])]).assert_outcomes(
        passed=1
    )


def test_a_suite_that_can_not_be_imported_is_not_an_interruption(pytester):
    pytester.makepyfile("import nothing_like_that")
    collector = Collector()

    result = pytester.runpytest_inprocess(*PLUGIN, plugins=[collector])

    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert not collector.interrupted


def test_ctrl_c_in_a_test_is_recorded(pytester):
    pytester.makepyfile("def test_one(): raise KeyboardInterrupt")
    collector = Collector()

    pytester.runpytest_inprocess(*PLUGIN, plugins=[collector], no_reraise_ctrlc=True)

    assert collector.interrupted


def test_a_suite_ends_when_its_ranks_are_lost(pytester):
    pytester.makepyfile(
        """
        from gradsync.ranks import LauncherError

        def test_one(): raise LauncherError("no more processes")

        def test_two(): pass
        """
    )
    collector = Collector()

    pytester.runpytest_inprocess(*PLUGIN, plugins=[collector]).assert_outcomes(failed=1)

    assert str(collector.lost) == "no more processes"
