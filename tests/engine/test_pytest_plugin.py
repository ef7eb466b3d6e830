"""The engine's pytest plugin in a repository of another project."""

import os
import re
import subprocess
import sys
import textwrap

import pytest
from terminal import in_a_terminal

from gradsync.pytest_plugin import own_devices

pytest_plugins = "pytester"


def run(pytester, source, *options):
    pytester.makepyfile(textwrap.dedent(source))
    return pytester.runpytest_subprocess(*options)


PROJECT = {  # the files of a project, whose tests run once
    "train.py": "import os; print('rank', os.environ['RANK'])",
    "test_0_warm.py": """
        import sys
        from gradsync.ranks import get_launcher

        WARM = get_launcher()._process is not None, "torch" in sys.modules

        def test_warm(ranks):
            assert WARM == (True, False)
        """,
    "test_passes.py": """
        import os, pytest, torch
        import torch.distributed as dist

        @pytest.fixture
        def start():
            return 10

        @pytest.mark.parametrize("step", [1, 2])
        @pytest.mark.ranks(2, 3)
        def test_sum(rank, world_size, start, step):
            total = torch.tensor(start + step * rank)
            dist.all_reduce(total)
            assert total == world_size * start + step * sum(range(world_size))

        class TestMore:
            @pytest.mark.ranks(2, timeout=30)
            def test_without_parameters(self):
                assert dist.get_world_size() == 2

        def test_script(ranks):
            seen = ranks(script="train.py", world_size=2)
            assert list(seen.output) == ["rank 0\\n", "rank 1\\n"]

        @pytest.mark.ranks(4, mesh={"dp": 2, "tp": 2}, nodes=2)
        def test_mesh(rank, mesh, tmp_path):
            assert mesh["tp"].get_local_rank() == rank % 2 == int(os.environ["LOCAL_RANK"])
            (tmp_path / str(rank)).touch()
            dist.barrier()
            assert len(list(tmp_path.iterdir())) == 4
        """,
    "test_fails.py": """
        import pytest, threading
        import torch.distributed as dist

        @pytest.fixture
        def lock():
            return threading.Lock()

        @pytest.mark.ranks(2)
        def test_marked(rank):
            print("rank", rank, "is here")
            assert rank + 1 == 7

        def test_called(ranks):
            def divide(rank):
                return 1 / rank

            ranks(divide, 2)

        @pytest.mark.ranks(2)
        def test_deadlock(rank):
            if rank == 0:
                dist.barrier()

        @pytest.mark.ranks(2)
        def test_differences(rank):
            assert {"mean": 2.0, "percent": "1%"} == {"mean": 3.0, "percent": "1%"}

        @pytest.mark.ranks(2)
        def test_lock(rank, lock):
            pass
        """,
    "test_skips.py": """
        import pytest

        @pytest.mark.ranks(2)
        def test_skipped(rank):
            pytest.skip("not today")

        @pytest.mark.ranks(2)
        def test_expected(rank):
            if rank == 1:
                pytest.xfail("later")

        @pytest.mark.ranks(2, backend="nccl")
        def test_on_gpus():
            pass

        def test_called_on_gpus(ranks):
            ranks(print, 2, backend="nccl")
        """,
}
WRONG_MARKS = {  # what a mark has, and the test's arguments -> the error
    ("", "rank"): "name one or more world sizes",
    ("'four'", "rank"): "name one or more world sizes",
    ("2.0", "rank"): "name one or more world sizes",
    ("2", "rank, ranks"): "leave out the fixture 'ranks', or the mark",
    ("2, tiemout=3", "rank"): "@pytest.mark.ranks has no option 'tiemout'; it has ",
}


def ended(folder, files, *options, **environ):
    """Write test files and run them; return the output."""
    for name, text in files.items():
        (folder / name).write_text(textwrap.dedent(text))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    return done.stdout


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Return what pytest shows of the project."""
    folder = tmp_path_factory.mktemp("project")
    return ended(folder, PROJECT, "-v", "-rs", CUDA_VISIBLE_DEVICES="")


@pytest.fixture(scope="module")
def outcomes(shown):
    """Return the outcome of each test of the project, by its name."""
    return dict(re.findall(r"^test_\w+\.py::(\S+) ([A-Z]+)", shown, re.M))


def test_the_body_of_a_marked_test_runs_on_each_rank(outcomes):
    sums = [f"test_sum[{ranks}-ranks-{step}]" for ranks in (2, 3) for step in (1, 2)]

    for name in (*sums, "TestMore::test_without_parameters"):
        assert outcomes[name] == "PASSED"


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("test_warm", id="the warm process starts before a module that uses it"),
        pytest.param("test_script", id="the fixture runs a script"),
        pytest.param("test_mesh", id="a test gets a mesh and shares its temporary folder"),
    ],
)
def test_more_that_a_test_can_do(outcomes, what):
    assert outcomes[what] == "PASSED"


def test_a_failure_shows_the_line_of_the_rank_and_its_values(shown, outcomes):
    assert outcomes["test_marked"] == outcomes["test_called"] == "FAILED"
    assert "assert 1 == 7" in shown or "assert (0 + 1) == 7" in shown
    assert ">       assert rank + 1 == 7" in shown
    assert "[rank 1] rank 1 is here" in shown
    assert "RankError: rank 0 raised ZeroDivisionError at test_fails.py" in shown
    assert ">       ranks(divide, 2)" in shown
    assert "gradsync/ranks" not in shown


@pytest.mark.parametrize(
    ("test", "lines"),
    [
        (
            "test_deadlock",
            [r">\s+dist\.barrier\(\)", r"E\s+gradsync\.RankFailure: Rank 1 returned"],
        ),
        ("test_differences", [r".*\{'mean': 2\.0\} != \{'mean': 3\.0\}", r".*'percent': '1%'"]),
        ("test_lock", [r".*the value of the fixture 'lock' can't be sent to the ranks"]),
    ],
)
def test_other_failures_show_their_reason(shown, outcomes, test, lines):
    assert outcomes[test] == "FAILED"
    for line in lines:
        assert re.search(f"^{line}", shown, re.M)


def test_a_rank_and_missing_gpus_can_skip_a_test(shown, outcomes):
    skipped = ("test_skipped", "test_on_gpus", "test_called_on_gpus")

    assert [outcomes[name] for name in skipped] == ["SKIPPED"] * 3
    assert outcomes["test_expected"] == "XFAIL"
    assert re.search(r"test_skips\.py.*: not today \(rank 0\)", shown)
    assert re.search("needs a GPU for each of 2 ranks.*finds 0", shown)


def test_a_wrong_mark_is_named_with_its_test(tmp_path):
    test = "import pytest\n\n@pytest.mark.ranks({})\ndef test_it({}):\n    pass\n"
    files = {f"test_{n}.py": test.format(*mark) for n, mark in enumerate(WRONG_MARKS)}

    text = ended(tmp_path, files)

    for number, error in enumerate(WRONG_MARKS.values()):
        assert re.search(rf"test_{number}\.py::test_it: .*{re.escape(error)}", text)


@pytest.mark.slow
def test_the_time_limit_comes_from_the_configuration(pytester):
    pytester.makeini("[pytest]\nranks_timeout = 2\n")
    done = run(
        pytester,
        """
        import time
        import pytest
        from gradsync import RankFailure

        def test_it(ranks):
            with pytest.raises(RankFailure, match="within 2 s"):
                ranks(lambda: time.sleep(60), 1)
        """,
    )

    done.assert_outcomes(passed=1)


def test_a_rank_can_be_debugged_while_the_others_wait(pytester):
    pytester.makepyfile(
        """
        import pytest, torch
        import torch.distributed as dist

        @pytest.mark.ranks(2, timeout=0.5)
        def test_it(rank):
            secret = 40 + rank
            breakpoint()
            dist.barrier()
        """
    )
    command = [sys.executable, "-m", "pytest", "-q", "--ranks-pdb", "1"]

    screen = in_a_terminal(
        command, [("(rank 1)", "p secret + 1"), ("\r\n42\r\n", "c")], pytester.path
    )

    assert "\r\n42\r\n" in screen
    assert "1 passed" in screen


@pytest.mark.slow
def test_no_second_debugger_opens_after_one_was_quit(pytester):
    pytester.makepyfile("def test_it(ranks):\n    ranks(lambda rank: breakpoint(), 2)\n")
    command = [sys.executable, "-m", "pytest", "-q", "--ranks-pdb", "1"]

    screen = in_a_terminal(command, [("(rank 1)", "q")], pytester.path)

    assert "the debugger was quit" in screen
    assert "BdbQuit" not in screen
    assert "1 failed" in screen


def test_the_debugger_opens_where_a_rank_raises(pytester):
    pytester.makepyfile("def test_it(ranks):\n    ranks(lambda rank: 1 / (rank - 1), 2)\n")
    command = [sys.executable, "-m", "pytest", "-q", "--ranks-pdb", "1"]

    screen = in_a_terminal(
        command, [("(rank 1)", "p rank + 70"), ("\r\n71\r\n", "q")], pytester.path
    )

    assert "rank 1 raised ZeroDivisionError" in screen
    assert "1 failed" in screen


@pytest.mark.slow
def test_the_debugger_stays_open_after_another_rank_has_failed(pytester):
    pytester.makepyfile(
        """
        def test_it(ranks):
            def fail(rank):
                if rank == 0:
                    raise ValueError("early")
                breakpoint()

            ranks(fail, 2)
        """
    )
    command = [sys.executable, "-m", "pytest", "-q", "--ranks-pdb", "1"]

    screen = in_a_terminal(
        command,
        [("(rank 1)", "import time; time.sleep(2); print(rank + 70)"), ("\r\n71\r\n", "c")],
        pytester.path,
    )

    assert "\r\n71\r\n" in screen
    assert "rank 0 raised ValueError" in screen


def test_a_debugger_without_a_terminal_is_refused(pytester):
    done = run(pytester, "def test_it(ranks):\n    ranks(lambda: 1, 1)\n", "--ranks-pdb=0")

    assert "A debugger needs a terminal" in done.stdout.str()


def test_a_rank_that_a_run_does_not_have_can_not_be_debugged(pytester):
    done = run(pytester, "def test_it(ranks):\n    ranks(lambda: 1, 2)\n", "--ranks-pdb=5")

    done.assert_outcomes(passed=1, warnings=1)
    assert "--ranks-pdb 5: this run has 2 ranks, numbered from 0" in done.stdout.str()


OTHERS = (
    "typer",
    "rich",
    "jinja2",
    "sklearn",
    "torchvision",
    "filelock",
    "msgspec",
    "platformdirs",
)
WITHOUT = f"import sys; sys.modules |= dict.fromkeys({OTHERS!r}); "


def test_the_engine_needs_none_of_the_courses_packages():
    code = f"{WITHOUT}import gradsync, gradsync.pytest_plugin; "
    code += "print(gradsync.run_ranks(lambda rank: rank, 2)[1])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "1"


def test_the_commands_say_which_packages_they_need():
    code = f"{WITHOUT}sys.argv = ['gradsync']; from gradsync.cli import main; main()"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "pip install 'gradsync[course]'" in done.stderr
    assert done.stderr.count("\n") == 1


SESSION = """
    import pytest, torch
    import torch.distributed as dist

    @pytest.fixture(scope="session", autouse=True)
    def group():
        dist.init_process_group("gloo")
        yield
        dist.destroy_process_group()

    def test_sum():
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total == dist.get_world_size()
"""


def test_a_session_that_was_written_for_a_launcher_runs_on_ranks(pytester):
    done = run(pytester, SESSION, "--on-ranks", "2")

    assert done.ret == pytest.ExitCode.OK
    done.stdout.fnmatch_lines(["*rank 0* 1 passed in*"])


@pytest.mark.slow
def test_a_deadlock_in_such_a_session_is_proved(pytester):
    more = """
    def test_skips():
        if dist.get_rank() == 0:
            dist.barrier()

    def test_goes_on():
        dist.all_reduce(torch.ones(1))
    """

    done = run(pytester, SESSION + more, "--on-ranks", "2")

    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["*The ranks call different collectives*Rank 0 calls barrier #2*"])


@pytest.mark.slow
def test_the_end_of_such_a_session_hides_no_deadlock(pytester):
    skip = """
    def test_skips():
        if dist.get_rank() == 0:
            dist.barrier()
    """

    done = run(pytester, SESSION + skip, "--on-ranks", "2")

    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["*Rank 1 *without calling barrier #2*Rank 0*"])


@pytest.mark.slow
def test_random_states_of_ranks_follow_from_the_seed_and_the_name_of_the_test(pytester):
    source = """
        import pytest, torch

        @pytest.mark.ranks(1)
        def test_draw():
            print("drawn", torch.rand(1).item())
    """

    outputs = [
        [line for line in run(pytester, source, "-s", *options).outlines if "drawn" in line]
        for options in ([], [], ["--ranks-seed", "1"])
    ]

    assert outputs[0] == outputs[1] != outputs[2]


def test_each_worker_of_xdist_has_its_own_devices():
    workers = [own_devices("0,1,2,3,4", f"gw{index}", "2") for index in range(2)]

    assert workers == ["0,1", "2,3"]
    assert own_devices("0", "gw1", "2") == "0"
