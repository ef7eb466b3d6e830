"""Ranks that persist from cell to cell: they are usable after any cell."""

import contextlib
import os
import signal
import threading
import time

import pytest
from processes import eventually, linux_only

from gradsync.ranks import get_launcher, run_ranks
from gradsync.ranks.host.session import Session

AT_ONCE = 30.0  # seconds, even on a very busy machine; undetected, it would take minutes
SETUP = """
import os, signal, threading, time
import torch, torch.distributed as dist
kept = 10 * rank
x = torch.ones(2)
"""
ENDLESS = {
    "computes": "while True: pass",
    "sleeps": "time.sleep(100)",
    "waits for a helper thread in a collective": """
def work():
    dist.all_reduce(x)
helper = threading.Thread(target=work)
helper.start()
helper.join() if rank else time.sleep(100)
""",
    "waits while another computes": "dist.all_reduce(x) if rank else time.sleep(100)",
    "waits for a message": "dist.recv(x, src=0) if rank else time.sleep(100)",
    "waits for a message from any rank": "dist.recv(x) if rank else time.sleep(100)",
    "waits to make a group": "dist.new_group([0, 1]) if rank else time.sleep(100)",
    "makes a deadlock in its own group": """
dist.destroy_process_group()
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
dist.init_process_group("gloo", rank=rank, world_size=world_size)
print("joined")
dist.all_reduce(x) if rank else time.sleep(100)
""",
}


@pytest.fixture
def session():
    session = Session(3)
    with contextlib.closing(session):
        session.run(SETUP, "In [1]", range(3))
        yield session


@pytest.fixture
def run(session):
    """Run a cell on all ranks, or on some."""

    def run(source, ranks=range(3)):
        return session.run(source, "In [2]", ranks)

    return run


def shown(outcome):
    """Return the text of each rank's last expression, or None."""
    assert outcome.observation.failure is None, outcome.observation.failure
    return [value[0]["text/plain"] if value else None for value in outcome.observation.values]


def stop_after(seconds):
    threading.Timer(seconds, os.kill, [os.getpid(), signal.SIGINT]).start()


def ends(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_variables_live_from_cell_to_cell(run):
    run("mine = rank + 1")

    assert shown(run("mine, kept, world_size")) == ["(1, 0, 3)", "(2, 10, 3)", "(3, 20, 3)"]


def test_a_cell_may_run_on_some_ranks(run):
    outcome = run("rank", [1, 2])

    assert outcome.ranks == (1, 2)
    assert shown(outcome) == [None, "1", "2"]


def test_printed_output_is_separate_from_the_last_value(run):
    outcome = run("print('from', rank)\nrank * 2")

    assert outcome.observation.output == ("from 0\n", "from 1\n", "from 2\n")
    assert shown(outcome) == ["0", "2", "4"]


def test_output_beyond_the_limit_is_cut_with_a_note(run):
    outcome = run("print('x' * 2**20) if rank == 1 else None")

    text = outcome.observation.output[1]
    assert text.endswith("... (a rank may print at most 256 KiB in a cell)\n")
    assert len(text) < 300_000


def test_a_semicolon_keeps_the_last_value_from_being_shown(run):
    assert run("rank;").observation.values == ([], [], [])


def test_display_shows_values_before_the_last_one(run):
    outcome = run("display('a', 1)\nrank")

    assert [forms["text/plain"] for forms in outcome.observation[2]] == ["'a'", "1", "2"]


def test_a_deadlock_ends_the_cell_at_once_and_names_its_line(run):
    began = time.monotonic()
    outcome = run("late = 1\nif rank != 1:\n    dist.all_reduce(x)")
    seconds = time.monotonic() - began

    diagnosis = outcome.observation.failure.diagnosis
    assert (diagnosis.code, diagnosis.ranks) == ("deadlock-rank-missing", (1,))
    assert diagnosis.where == "In [2]:3"
    assert "Rank 1 returned without calling all_reduce #1 (2 x float32)." in diagnosis.explanation
    assert seconds < AT_ONCE


def test_variables_survive_a_deadlock_and_collectives_work_again(run):
    outcome = run("late = 1\nif rank != 1:\n    dist.all_reduce(x)")

    assert outcome.new_group
    assert outcome.lost == ()
    assert shown(run("t = torch.ones(1)\ndist.all_reduce(t)\nt.item(), late, kept")) == [
        "(3.0, 1, 0)",
        "(3.0, 1, 10)",
        "(3.0, 1, 20)",
    ]


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("dist.barrier() if rank else dist.all_reduce(x)", "deadlock-order-differs"),
        ("dist.all_reduce(torch.ones(rank + 1))", "shape-mismatch"),
        ("dist.broadcast(x, src=rank)", "wrong-source"),
        (
            "dist.recv(x, (rank + 1) % 3)",
            "deadlock-order-differs",
        ),
        ("g = dist.new_group([0, 1])\nif rank == 0: dist.barrier(g)", "deadlock-rank-missing"),
        ("w = dist.all_reduce(x, async_op=True) if rank else None\nw and w.wait()",
         "deadlock-rank-missing"),
        ("for _ in range(rank + 1): dist.all_reduce(x)", "deadlock-rank-missing"),
        ("dist.monitored_barrier() if rank == 0 else None", "deadlock-rank-missing"),
    ],
)  # fmt: skip
def test_every_kind_of_deadlock_leaves_the_ranks_usable(run, cell, code):
    outcome = run(cell)

    assert outcome.observation.failure.diagnosis.code == code
    assert shown(run("t = torch.ones(1)\ndist.all_reduce(t)\nt.item()")) == ["3.0"] * 3


PENDING_AT_THE_END = """
work = dist.all_reduce(x, async_op=True) if rank else None
if rank:
    dist.destroy_process_group()
"""


def test_destroying_a_group_with_pending_collectives_ends_the_cell(run):
    began = time.monotonic()
    outcome = run(PENDING_AT_THE_END)
    seconds = time.monotonic() - began

    diagnosis = outcome.observation.failure.diagnosis
    assert (diagnosis.code, diagnosis.ranks) == ("deadlock-rank-missing", (0,))
    assert diagnosis.explanation == (
        "Rank 0 returned without calling all_reduce #1 (2 x float32). Ranks 1 and 2 are waiting in "
        "destroy_process_group, at In [2]:4. destroy_process_group returns only when all "
        "collectives that the rank has started are complete. Every rank must make this call. Look "
        "for a branch or an early return before it."
    )
    assert seconds < AT_ONCE
    assert outcome.lost == ()
    assert shown(run("dist.barrier()\nkept")) == ["0", "10", "20"]


@pytest.mark.parametrize(
    "cell",
    [
        "work = dist.all_reduce(x, async_op=True) if rank else None",
        "work = dist.all_reduce(x, async_op=True)",
        "work = dist.irecv(x, src=(rank + 1) % 3)",
        "g = dist.new_group([0, 1])\nwork = dist.barrier(g, async_op=True) if rank == 0 else None",
    ],
)
def test_destroying_the_group_on_all_ranks_does_not_block(run, cell):
    assert shown(run(f"{cell}\ndist.destroy_process_group()\nkept")) == ["0", "10", "20"]


def test_destroying_the_group_returns_after_a_late_collective(run):
    late = "else:\n    time.sleep(0.7)\n    dist.all_reduce(x)\nkept"

    assert shown(run(PENDING_AT_THE_END + late)) == ["0", "10", "20"]


FROM_ANY_RANK = {
    "all ranks": "dist.recv(x)\nprint('went on')",
    "two ranks": "dist.recv(x) if rank else None\nprint('went on') if rank else None",
    "one rank, by a handle": "dist.irecv(x).wait() if rank == 1 else None",
    "a rank of a subgroup": "g = dist.new_group([1, 2])\n"
    "dist.recv(x, group=g) if rank == 1 else None",
    "another tag": "dist.recv(x, tag=3) if rank == 2 else dist.barrier()",
    "the second of two, where one is sent": "if rank == 0: dist.send(x, 1)\n"
    "if rank == 1: dist.recv(x), dist.recv(x)",
    "a helper thread": "def work(): dist.recv(x)\nhelper = threading.Thread(target=work)\n"
    "if rank == 1: helper.start(), helper.join()",
}


@pytest.mark.parametrize("who", FROM_ANY_RANK)
def test_variables_survive_a_wait_for_a_message_from_any_rank(run, who):
    began = time.monotonic()
    outcome = run(FROM_ANY_RANK[who])
    seconds = time.monotonic() - began

    assert "from any rank" in outcome.observation.failure.diagnosis.explanation
    assert outcome.lost == ()
    assert outcome.observation.output == ("", "", "")
    assert seconds < AT_ONCE
    assert shown(run("dist.barrier()\nkept")) == ["0", "10", "20"]


def test_a_rank_may_compute_after_a_recv_from_any_rank(run):
    cell = "if rank == 0: dist.send(x, 1)\nif rank == 1: dist.recv(x), time.sleep(1.5)"

    assert shown(run(f"{cell}\ndist.barrier()\nkept")) == ["0", "10", "20"]


@pytest.mark.slow
def test_fifty_deadlocks_in_a_row_leave_no_connection_open(run):
    count = "len(os.listdir('/dev/fd')), threading.active_count()"
    run("if rank: dist.barrier()")
    before = shown(run(count))

    for _ in range(50):
        run("if rank: dist.barrier()")

    assert shown(run(count)) == before


def test_variables_survive_a_deadlock_that_is_found_as_a_rank_enters(run):
    lost = [run("for _ in range(rank + 1): dist.all_reduce(x)").lost for _ in range(30)]

    assert lost == [()] * 30


def test_each_of_two_deadlocks_names_its_own_call_and_line(run):
    run("dist.all_reduce(x)\ndist.all_reduce(torch.ones(7))\nif rank: dist.barrier()")
    outcome = run("dist.broadcast(x, 0)\n\nif rank:\n    dist.all_reduce(torch.ones(5))")

    explanation = outcome.observation.failure.diagnosis.explanation
    assert "Rank 0 returned without calling all_reduce #2 (5 x float32)." in explanation
    assert "In [2]:4" in explanation


def test_the_message_names_ranks_that_do_not_run_the_cell(run):
    outcome = run("dist.barrier()", [1, 2])

    explanation = outcome.observation.failure.diagnosis.explanation
    assert "Rank 0 does not run this cell, so it never calls barrier #1." in explanation


def test_an_exception_is_reported_with_its_lines_and_ends_the_cell(run):
    outcome = run("def inverse(n):\n    return 1 / n\ninverse(rank)\ndist.barrier()")

    failure = outcome.observation.failure
    assert failure.diagnosis.explanation == (
        "Rank 0 raised ZeroDivisionError at In [2]:2: division by zero."
    )
    assert failure.traceback == (
        "In [2]:3 in <cell>: inverse(rank)\nIn [2]:2 in inverse: return 1 / n"
    )
    assert shown(run("kept")) == ["0", "10", "20"]


def test_ranks_that_do_not_wait_may_finish_after_an_exception(run):
    outcome = run("if rank == 0: 1 / 0\ntime.sleep(1.2)\ndone = True")

    assert not outcome.new_group
    assert shown(run("done", [1, 2])) == [None, "True", "True"]


def test_a_killed_rank_is_replaced_and_named_as_lost(run):
    outcome = run("if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\ndist.barrier()")

    assert outcome.observation.failure.diagnosis.code == "rank-crashed"
    assert outcome.lost == (1,)
    assert shown(run("'kept' in globals()")) == ["True", "False", "True"]
    assert shown(run("import torch.distributed as dist\ndist.barrier()\nrank")) == ["0", "1", "2"]


KILLED_AS_IT_WAITS = """
import threading
if rank == {victim}:
    threading.Timer(0.3, os.kill, [os.getpid(), 9]).start()
if rank == 1:
    time.sleep(1)
dist.barrier()
"""
FAILED_BESIDE_A_LOOP = """
while rank == 1:
    pass
if rank == 2:
    raise ValueError("bad batch")
"""


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_killed_while_it_waits_for_a_busy_one_ends_the_cell(run, victim):
    outcome = run(KILLED_AS_IT_WAITS.format(victim=victim))

    assert outcome.observation.failure.diagnosis.code == "rank-crashed"
    assert outcome.observation.failure.diagnosis.ranks == (victim,)
    assert outcome.lost == (victim,)
    assert outcome.stopped is None


def test_a_stopped_cell_names_the_rank_that_had_failed(run):
    stop_after(1.0)
    outcome = run(FAILED_BESIDE_A_LOOP)

    assert outcome.stopped
    assert "bad batch" in outcome.observation.failure.diagnosis.explanation


def test_a_rank_that_ends_between_cells_is_replaced(run):
    run("threading.Timer(0.2, os._exit, [0]).start()", [2])
    time.sleep(0.5)

    outcome = run("kept" if False else "rank")

    assert outcome.lost == (2,)
    assert shown(outcome) == ["0", "1", "2"]


@pytest.mark.parametrize("what", ENDLESS)
def test_a_stopped_cell_leaves_ranks_and_variables(run, session, what):
    session.push("port", free_port())
    source = f"print('begun')\n{ENDLESS[what]}"
    wanted = "joined" if "joined" in source else "begun"  # a rank that joins is not interrupted
    begun = []

    def stop_once(output, _failure, _run):
        if not begun and all(wanted in text for text in output):
            begun.append(stop_after(0.3))

    outcome = session.run(source, "In [2]", range(3), stop_once)

    assert outcome.stopped
    assert outcome.lost == ()
    assert shown(run("t = torch.ones(1)\ndist.all_reduce(t)\nt.item(), kept")) == [
        "(3.0, 0)",
        "(3.0, 10)",
        "(3.0, 20)",
    ]


def test_a_stop_frees_ranks_that_wait_in_cpp_code(run):
    run("model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))")
    stop_after(0.4)

    outcome = run("loss = model(x).sum()\nloss.backward() if rank else time.sleep(100)")

    assert outcome.stopped
    assert outcome.lost == ()
    assert shown(run("dist.barrier()\nkept")) == ["0", "10", "20"]


def test_ranks_that_wait_in_their_own_store_are_replaced(run):
    run("dist.destroy_process_group()\nstore = dist.FileStore(os.environ['TMPDIR'] + '/own', 3)")
    stop_after(0.4)

    outcome = run("if rank: store.get('never')")

    assert outcome.lost == (1, 2)
    assert shown(run("'kept' in globals()")) == ["True", "False", "False"]
    assert shown(run("import torch.distributed as dist\ndist.barrier()\nrank")) == ["0", "1", "2"]


def test_ranks_are_usable_after_an_interrupted_start_of_a_group(run):
    run("dist.destroy_process_group()")
    stop_after(0.4)
    run("time.sleep(100) if rank == 0 else dist.init_process_group('gloo', init_method='env://')")

    assert shown(run("import torch.distributed as dist\ndist.barrier()\nrank")) == ["0", "1", "2"]


def test_a_rank_that_can_not_start_a_new_group_is_replaced(run):
    run("dist.destroy_process_group = None", [1])
    run("if rank: dist.barrier()")

    outcome = run("'kept' in globals()")

    assert outcome.lost == (1,)
    assert shown(outcome) == ["True", "False", "True"]
    assert shown(run("import torch.distributed as dist\ndist.barrier()\nrank")) == ["0", "1", "2"]


def free_port():
    import socket

    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        return end.getsockname()[1]


def test_the_message_of_a_stopped_cell_names_the_lines_of_its_ranks(run):
    stop_after(0.4)

    outcome = run("if rank == 0:\n    while True:\n        pass\ndist.barrier()")

    assert "Rank 0 is at In [2]:" in outcome.stopped
    assert "Ranks 1 and 2 are waiting in barrier #1, at In [2]:4." in outcome.stopped


def test_a_rank_that_catches_every_interruption_is_replaced(run):
    stop_after(0.4)

    outcome = run("""
while rank == 1:
    try:
        time.sleep(0.01)
    except BaseException:
        pass
""")

    assert outcome.lost == (1,)
    assert shown(run("rank")) == ["0", "1", "2"]


def test_a_handle_of_one_cell_can_be_waited_for_in_the_next(run):
    run("t = torch.ones(1)\nwork = dist.all_reduce(t, async_op=True)", [0, 1])
    run("t = torch.ones(1)\nwork = dist.all_reduce(t, async_op=True)", [2])

    assert shown(run("work.wait()\nt.item()")) == ["3.0"] * 3


def test_a_handle_that_can_never_complete_is_reported_in_the_next_cell(run):
    run("work = dist.all_reduce(x, async_op=True)", [0, 1])

    outcome = run("work.wait()", [0, 1])

    diagnosis = outcome.observation.failure.diagnosis
    assert diagnosis.code == "deadlock-rank-missing"
    assert "so it never calls the all_reduce of an earlier cell (2 x float32)" in (
        diagnosis.explanation
    )


@pytest.mark.parametrize(
    "before",
    [
        "dist.barrier()\ndist.barrier()",
        "work = dist.all_reduce(x, async_op=True)",
        "work = dist.all_reduce(x, async_op=True) if rank else None",
        "work = dist.barrier(async_op=True)\ndist.all_reduce(x)",
    ],
)
def test_collectives_are_counted_from_one_in_each_cell(run, before):
    run(before)

    outcome = run("dist.barrier() if rank == 0 else None", [0])

    assert "barrier #1" in outcome.observation.failure.diagnosis.explanation


def test_messages_are_counted_from_one_in_each_cell(run):
    exchange = "dist.send(x, 1) if rank == 0 else dist.recv(x, 0) if rank == 1 else None"
    run(f"{exchange}\nwork = dist.irecv(x, tag=1)")

    outcome = run(f"{exchange}\nif rank == 1: dist.recv(x, 0)")

    assert "recv #2 from rank 0" in outcome.observation.failure.diagnosis.explanation


def test_a_message_that_an_earlier_cell_received_is_not_expected_again(run):
    run("if rank == 0: dist.send(x, 1)\nif rank == 1: dist.recv(x)")

    for cell in ("if rank == 1: dist.recv(x, 0)", "if rank == 0: dist.send(x, 1)"):
        assert run(cell).observation.failure.diagnosis.code == "deadlock-rank-missing"


def test_values_can_be_sent_to_the_ranks_and_back(run, session):
    session.push("table", {"a": [1, 2]})
    run("mine = table['a'] + [rank]")

    assert session.pull("mine") == [{"mine": [1, 2, rank]} for rank in range(3)]


def test_a_function_of_the_notebook_can_be_sent_to_the_ranks(run, session):
    offset = 5
    session.push("shifted", lambda number: number + offset)

    assert shown(run("shifted(rank)")) == ["5", "6", "7"]


def test_a_value_that_is_not_plain_data_is_refused(run, session):
    run("stream = open('/dev/null')")

    with pytest.raises(Exception, match="TextIOWrapper: a rank can return numbers, strings"):
        session.pull("stream")


def test_a_value_that_cannot_be_sent_is_refused(session):
    with pytest.raises(TypeError, match="handle can't be sent to the ranks"):
        session.push("handle", threading.Lock())


def test_other_runs_work_beside_a_session(session):
    assert list(run_ranks(lambda rank: rank, 2)) == [0, 1]
    assert session.world_size == 3


def test_a_session_outlives_the_process_that_other_ranks_are_forked_from(run):
    began = time.monotonic()
    get_launcher().close()

    assert time.monotonic() - began < AT_ONCE
    assert shown(run("kept")) == ["0", "10", "20"]


def test_the_status_lists_the_variables_that_cells_made(session):
    states = session.status()

    assert [state["variables"] for state in states] == [["kept", "x"]] * 3


@pytest.mark.parametrize("cell", ["if rank: dist.barrier()", "dist.broadcast(x, src=rank)"])
def test_the_status_and_values_are_available_right_after_a_deadlock(run, session, cell):
    run(cell)
    session.push("answer", 42)

    assert [state["variables"] for state in session.status()] == [["kept", "x", "answer"]] * 3
    assert session.pull("answer") == [{"answer": 42}] * 3


@linux_only
def test_closing_it_ends_every_process(run, session):
    run("child = os.fork()\nif child == 0: time.sleep(100)")
    pids = [state["pid"] for state in session.status()]

    session.close()

    assert eventually(lambda: all(map(ends, pids)))


@pytest.mark.slow
def test_it_works_with_ranks_that_are_spawned(monkeypatch):
    monkeypatch.setattr("gradsync.ranks.host.session.get_launcher", lambda: get_launcher("spawn"))
    with contextlib.closing(Session(2)) as session:
        session.run("import torch.distributed as dist\nkept = rank", "In [1]", range(2))
        failed = session.run("if rank: dist.barrier()", "In [2]", range(2))
        outcome = session.run("dist.barrier()\nkept", "In [3]", range(2))

    assert failed.observation.failure.diagnosis.code == "deadlock-rank-missing"
    assert shown(outcome) == ["0", "1"]
