"""`%%ranks` in a real kernel."""

import re
import time
from pathlib import Path

import psutil
import pytest
from kernels import kernel
from processes import eventually, linux_only

AT_ONCE = 30.0  # seconds, even on a very busy machine; undetected, it would take minutes


@pytest.fixture(scope="module")
def shared():
    """A kernel that has 4 ranks, and `x` on each."""
    with kernel() as started:
        run = started.run
        assert run("%load_ext gradsync").status == "ok"
        yield started


@pytest.fixture
def run(shared):
    """Run cells of the kernel; ranks that could not be interrupted in time are new ones."""
    first = shared.run(
        "%%ranks 4\nimport torch, torch.distributed as dist, time\nx = torch.ones(2)"
    )
    assert first.status == "ok", first.traceback
    return shared.run


@pytest.fixture
def fresh():
    """A new kernel for one test, with 2 ranks."""
    with kernel() as started:
        started.run("%load_ext gradsync")
        started.run("%%ranks 2\nimport torch, torch.distributed as dist, time")
        yield started


def descendants(started):
    [process] = [psutil.Process(started.manager.provisioner.pid)]
    return process.children(recursive=True)


def gone(processes):
    return not any(map(lives, processes))


def lives(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it has ended meanwhile
        return False


def test_a_cell_runs_on_each_rank_and_shows_its_last_value(run):
    shown = run("%%ranks 4\nrank * world_size")

    assert shown.text == "[rank 0] 0\n[rank 1] 4\n[rank 2] 8\n[rank 3] 12"


def test_equal_output_of_all_ranks_is_shown_once(run):
    shown = run("%%ranks 4\nt = torch.ones(1) * rank\ndist.all_reduce(t)\nprint('sum')\nt")

    assert shown.text == "[ranks 0-3] sum\n[ranks 0-3] tensor([6.])"
    assert shown.html.count("tensor([6.])") == 1
    assert "ranks 0-3" in shown.html


def test_each_rank_has_its_own_colour(run):
    html = run("%%ranks 4\nrank").html

    colours = re.findall(r'class="gs-block" style="--rank: (#\w{6})"', html)
    assert colours == ["#3f7fd9", "#dd7a1b", "#2f9a5b", "#9160cf"]


def test_printed_markup_is_shown_as_text(run):
    html = run("%%ranks 4\nprint('<b>bold</b>')").html

    assert "&lt;b&gt;bold&lt;/b&gt;" in html


def test_a_figure_of_a_rank_is_shown_as_a_picture(run):
    shown = run(
        "%%ranks 4 --rank 1\nimport matplotlib.pyplot as plt\nfigure, _ = plt.subplots()\nfigure"
    )

    assert "data:image/png;base64," in shown.html


def test_a_deadlocked_cell_ends_at_once_with_its_explanation_and_timeline(run):
    run("%%ranks 4\nkept = rank")
    failed = run("%%ranks 4\nif rank in (0, 3):\n    dist.all_reduce(x)")

    assert failed.status == "error"
    assert failed.seconds < AT_ONCE
    assert failed.error == "CellFailed: deadlock-rank-missing (ranks 1 and 2), explained above"
    assert "Ranks 1 and 2 returned without calling all_reduce #1 (2 x float32)." in failed.text
    assert "All ranks keep their variables. The next cell has a new process group." in failed.text
    assert "<svg" in failed.html
    assert run("%%ranks 4\ndist.all_reduce(x)\nkept").text == (
        "[rank 0] 0\n[rank 1] 1\n[rank 2] 2\n[rank 3] 3"
    )


def test_a_failure_is_shown_while_other_ranks_compute(run):
    failed = run("%%ranks 4\nif rank == 2:\n    1 / 0\ntime.sleep(4)\nlate = rank")

    [(seconds, early)] = failed.first
    assert "Rank 2 raised ZeroDivisionError at In [" in early
    assert "Other ranks are still running. The stop button ends the cell" in early
    assert seconds < 3.5
    assert failed.error == "CellFailed: exception (rank 2), explained above"
    assert failed.updates == 1
    assert "still running" not in failed.text
    assert run("%%ranks 4 --rank 0,1,3\nlate").text == "[rank 0] 0\n[rank 1] 1\n[rank 3] 3"


def test_each_of_several_exceptions_is_shown_once(run):
    failed = run(
        "%%ranks 4\nif rank == 1:\n    raise ValueError('one')\nif rank > 1:\n    {}['two']"
    )

    assert failed.error == "CellFailed: exception (ranks 1, 2 and 3), explained above"
    for text in (failed.text, failed.html.replace("&#39;", "'")):
        assert text.count("Rank 1 raised ValueError at In [") == 1
        assert text.count("Ranks 2 and 3 raised KeyError at In [") == 1
        assert text.count("raise ValueError('one')") == 1


def test_the_variables_of_a_rank_that_can_not_be_interrupted_are_named(fresh):
    fresh.run("%%ranks 2\nweights = 1\nbatch = 2")
    request = fresh.begin(
        "%%ranks 2\nwhile rank:\n    try:\n        time.sleep(0.01)\n"
        "    except BaseException:\n        pass"
    )
    time.sleep(1)
    fresh.manager.interrupt_kernel()
    stopped = fresh.finish(request)

    assert (
        "Rank 1 could not be interrupted. Rank 1 is a new process, so its variables (weights, "
        "batch) and imports are lost. Run the cells again that define these variables."
        in stopped.text
    )


def test_line_numbers_count_from_the_start_of_the_cell(run):
    failed = run("%%ranks 4\n\nif rank == 2:\n    raise KeyError('lost')\n")

    assert re.search(r"Rank 2 raised KeyError at In \[\d+\]:4: 'lost'", failed.text)


def test_the_cell_number_is_the_one_that_the_notebook_shows(shared):
    number = int(shared.run("print(len(In) - 1)").stdout) + 1

    assert f"In [{number}]:2" in shared.run("%%ranks 4\n1 / 0").text


def test_a_syntax_error_is_shown_once(run):
    failed = run("%%ranks 4\nx = (1,\ny =")

    assert failed.shown == []
    assert failed.traceback.count("SyntaxError") == 1
    assert "line 2" in failed.traceback


@pytest.mark.parametrize(
    ("line", "number"),
    [("!ls", 2), ("x = 1\nif x:\n    %time 3", 4), ("files = !ls", 2), ("x?", 2), ("%%time\nx", 2)],
)
def test_a_line_that_only_ipython_understands_is_named(run, line, number):
    failed = run(f"%%ranks 4\n{line}")

    assert re.match(rf"CellFailed: In \[\d+\]:{number}: ", failed.error)
    assert "Ranks run plain Python" in failed.error
    assert "Move this line to a cell without %%ranks" in failed.error
    assert "SyntaxError" not in failed.error


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("name = input('who?')", "input() does not work on ranks. Ask in a cell without"),
        ("get_ipython()", "Ranks run plain Python. Use IPython in a cell without %%ranks"),
        ("breakpoint()", "Remove breakpoint(): a rank has no terminal"),
    ],
)
def test_calls_that_need_a_terminal_are_explained(run, line, reported):
    assert reported in run(f"%%ranks 4\n{line}").text


@pytest.mark.parametrize(
    ("call", "reported"),
    [
        ('check("averge_gradients", print)',
         "CourseError: There is no exercise 'averge_gradients'. Did you mean average_gradients?"),
        ('check(print, "average_gradients")',
         "NotebookError: the first argument is an exercise's name, the second is your answer: "),
        ('check("average_gradients", 3)', "NotebookError: No cell that has run defines"),
    ],
)  # fmt: skip
def test_a_wrong_argument_of_check_is_explained_in_one_line(run, call, reported):
    failed = run(f"from gradsync.notebook import check\n{call}")

    assert failed.traceback.startswith(reported)
    assert "\n" not in failed.traceback


def test_different_dtypes_are_named_by_rank(run):
    failed = run("%%ranks 4\ndist.all_reduce(x.double() if rank == 2 else x)")

    assert "The ranks call all_reduce #1 with tensors of different dtypes." in failed.text
    assert "Rank 2 calls all_reduce #1 (2 x float64, shape [2]), at In [" in failed.text
    assert "Ranks 0, 1 and 3 call all_reduce #1 (2 x float32, shape [2]), at In [" in failed.text


def test_output_appears_while_the_cell_runs(run):
    shown = run("%%ranks 4\nfor step in range(4):\n    print('step', step)\n    time.sleep(0.3)")

    assert shown.updates >= 1
    assert len(shown.shown) == 1
    assert shown.text.splitlines()[-1] == "[ranks 0-3] step 3"


def test_pull_copies_values_to_the_notebook(run):
    run("%%ranks 4\nmine = torch.ones(2) * rank")
    run("%ranks pull mine")

    assert (
        run("[v.tolist() for v in mine]").text == "[[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]"
    )


def test_pull_of_a_variable_that_some_ranks_lack_prints_a_note(run):
    run("%%ranks 4 --rank 1,3\nsome = rank")

    pulled = run("%ranks pull some")

    assert pulled.text == "[None, 1, None, 3]"
    assert "ranks 0 and 2: no variable 'some', so the value is None." in pulled.stdout


def test_push_copies_values_to_the_ranks(run):
    run("scale = 3\ndef scaled(number):\n    return number * scale")
    run("%ranks push scaled")

    assert run("%%ranks 4 --rank 2-3\nscaled(rank)").text == "[rank 2] 6\n[rank 3] 9"


def test_each_number_of_ranks_has_separate_ranks(run):
    run("%%ranks 4\nhere = 1")
    run("%%ranks 2\nhere = 2")

    assert run("%%ranks 4\nhere").text == "[ranks 0-3] 1"
    assert "2 ranks:" in run("%ranks status").stdout


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%%ranks", "The number of ranks is missing"),
        ("%%ranks four", "invalid int value: 'four'. Use %%ranks NUMBER [--rank LIST]"),
        ("%%ranks 4 --rnk 1", "unrecognized arguments: --rnk 1. Use %%ranks NUMBER"),
        ('%%ranks 4 "', '4 ": No closing quotation'),
        ("%%ranks 4 --rank 3-1", "--rank 3-1 is not a list of ranks such as 1,2 or 0-3"),
        ("%%ranks 0", "world_size must be from 1 to 256, got 0"),
        ("%%ranks 257", "world_size must be from 1 to 256, got 257"),
        ("%%ranks 4 --rank 4", "--rank 4: unknown rank 4; ranks are numbered from 0 to 3"),
        ("%%ranks 4 --rank x", "--rank x is not a list of ranks such as 1,2 or 0-3"),
    ],
)
def test_an_invalid_first_line_is_explained(run, line, message):
    assert message in run(f"{line}\n1").stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%ranks pull nothing", "No rank has a variable 'nothing'"),
        ("%ranks push nothing", "The notebook has no variable 'nothing'"),
        ('%ranks pull "', 'pull ": No closing quotation'),
        ("%ranks fly", "Use %ranks [status | reset | pull NAME | push NAME]"),
        ("%ranks pull", "Use %ranks [status | reset | pull NAME | push NAME]"),
    ],
)
def test_an_impossible_line_is_explained(run, line, message):
    assert message in run(line).stderr


def test_a_value_that_cannot_be_sent_is_explained_in_one_line(run):
    failed = run("import threading\nlock = threading.Lock()\n%ranks push lock")

    assert failed.traceback.startswith("lock can't be sent to the ranks, which are other processes")
    assert "\n" not in failed.traceback


def test_ranks_that_end_themselves_keep_their_variables(run):
    failed = run("%%ranks 4\nimport sys\nsys.exit(3)")

    assert "Ranks 0-3 exited with SystemExit(3) at In [" in failed.text
    assert "All ranks keep their variables" in failed.text


def test_without_ranks_a_message_says_how_to_start_them():
    with kernel() as started:
        started.run("%load_ext gradsync")

        for line in ("%ranks", "%ranks status", "%ranks reset"):
            assert "There are no ranks yet" in started.run(line).stdout
        assert "There are no ranks yet" in started.run("%ranks pull x").stderr


def test_the_stop_button_ends_a_cell_and_leaves_the_ranks_usable(fresh):
    fresh.run("%%ranks 2\nkept = rank")
    request = fresh.begin("%%ranks 2\nif rank == 0:\n    time.sleep(100)\ndist.barrier()")
    time.sleep(1)
    fresh.manager.interrupt_kernel()
    stopped = fresh.finish(request)

    assert stopped.status == "error"
    assert "Rank 0 is at In [4]:3. Rank 1 is waiting in barrier #1, at In [4]:4." in stopped.text
    assert fresh.run("%%ranks 2\ndist.barrier()\nkept").text == "[rank 0] 0\n[rank 1] 1"


def test_a_long_cell_says_which_ranks_run_and_how_to_stop_it(fresh):
    fresh.run("import gradsync.notebook.cell_output as shown; shown.LONG_SECONDS = 0.5")
    request = fresh.begin("%%ranks 2\nwhile rank == 0:\n    pass\ndist.barrier()")
    time.sleep(2)
    fresh.manager.interrupt_kernel()
    stopped = fresh.finish(request)

    hint = "Rank 0 is still running. To stop the cell, interrupt the kernel"
    assert [text[: len(hint)] for _, text in stopped.first].count(hint) == 1
    assert hint not in stopped.text
    assert "Rank 0 is at In [" in stopped.text


def test_pyplot_shows_each_figure_once(run):
    shown = run("%%ranks 4\nimport matplotlib.pyplot as plt\nplt.plot([rank, 1])\nplt.show()")
    again = run("%%ranks 4\nplt.show()")

    assert shown.html.count("data:image/png;base64,") == 4
    assert shown.status == "ok"
    assert not again.shown


def test_another_number_of_ranks_is_announced_once(fresh):
    first = fresh.run("%%ranks 2\nx = rank")
    other = fresh.run("%%ranks 1\nx = rank")
    again = fresh.run("%%ranks 1\nx")

    assert first.stdout == again.stdout == ""
    assert "This is another rank, without variables yet. The ranks of %%ranks 2" in other.stdout


def test_reset_ends_the_ranks(fresh):
    ranks = descendants(fresh)

    answer = fresh.run("%ranks reset")

    assert answer.stdout == "2 ranks ended, with all their variables.\n"
    assert eventually(lambda: sum(map(lives, ranks)) == 1), "only the warm process should be left"


@linux_only
@pytest.mark.parametrize(
    "how",
    [
        pytest.param("restart", marks=pytest.mark.slow),
        pytest.param("shut down", marks=pytest.mark.slow),
        "kill",
    ],
)
def test_no_process_is_left_when_the_kernel_ends(fresh, how):
    processes = descendants(fresh)
    assert len(processes) >= 4, "expected two warm processes and two ranks"
    if how == "kill":
        psutil.Process(fresh.manager.provisioner.pid).kill()
    elif how == "restart":
        fresh.manager.restart_kernel(now=False)
    else:
        fresh.manager.shutdown_kernel(now=False)

    assert eventually(lambda: gone(processes))


def test_loading_the_extension_again_keeps_the_ranks(fresh):
    fresh.run("%%ranks 2\nkept = rank")
    fresh.run("%load_ext gradsync")
    fresh.run("%reload_ext gradsync")

    assert fresh.run("%%ranks 2\nkept").text == "[rank 0] 0\n[rank 1] 1"


def test_a_cell_can_import_modules_beside_the_notebook(tmp_path: Path):
    (tmp_path / "beside.py").write_text("ANSWER = 42\n")
    with kernel(str(tmp_path)) as started:
        started.run("%load_ext gradsync")

        assert started.run("%%ranks 2\nimport beside\nbeside.ANSWER").text == "[ranks 0 and 1] 42"
