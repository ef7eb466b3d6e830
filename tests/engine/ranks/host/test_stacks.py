"""Finding the user's line in the stacks that a rank writes."""

from gradsync.ranks.host.stacks import endless_call, user_line
from gradsync.ranks.protocol.user_files import WATCH

HELPER = """Thread 0x00007f01 (most recent call first):
  File "/class/ada/helper.py", line 3 in fetch
  File "/usr/lib/python3.11/threading.py", line 975 in run
"""
FILE, FUNCTION = sorted(WATCH)[0]
WAITING = f"""Thread 0x00007f02 (most recent call first):
  File "{FILE}", line 101 in {FUNCTION}
  File "/class/ada/trainer.py", line 8 in step
"""
MAIN = """
Current thread 0x00007f03 (most recent call first):
  File "/site/torch/autograd.py", line 12 in backward
  File "/class/ada/trainer.py", line 5 in train
  File "/class/ada/trainer.py", line 90 in main
"""


def shows(file):
    return file.startswith("/class/ada/")


def test_the_users_innermost_line_is_found():
    assert user_line(MAIN, shows) == "trainer.py:5"


def test_the_first_thread_is_used():
    assert user_line(HELPER + MAIN, shows) == "trainer.py:5"


def test_a_thread_that_waits_in_a_collective_comes_last():
    assert user_line(HELPER + "\n" + WAITING, shows) == "helper.py:3"


def test_a_waiting_thread_is_used_if_there_is_no_other():
    assert user_line(WAITING, shows) == "trainer.py:8"


def test_the_dump_of_a_crash_is_read():
    assert user_line("Fatal Python error: Aborted\n" + MAIN, shows) == "trainer.py:5"


def test_texts_without_frames_give_no_line():
    assert user_line(MAIN.replace("/class/ada", "/opt"), shows) is None
    assert user_line("", shows) is None
    assert user_line("Thread 0x\n" * 1000, shows) is None


def test_a_line_number_of_6000_digits_is_ignored():
    forged = f'Thread 0x1\n  File "/class/ada/trainer.py", line {"9" * 6000} in train\n'

    assert user_line(forged + MAIN, shows) == "trainer.py:5"


def dump(*functions):
    lines = [f'  File "/class/ada/trainer.py", line 5 in {name}' for name in functions]
    return "Current thread 0x00007f03 (most recent call first):\n" + "\n".join(lines)


def test_a_repeated_function_is_a_recursion():
    assert endless_call(dump(*["call", "forward"] * 50, "main"), shows) in ("call", "forward")
    assert endless_call(dump("f", *["g"] * 40), shows) == "g"


def test_a_few_nested_calls_are_not_a_recursion():
    assert endless_call(dump(*["walk"] * 10, "main"), shows) is None
    assert endless_call(dump(*["walk"] * 40).replace("/class/ada", "/opt"), shows) is None


def test_a_long_name_is_cut():
    assert endless_call(dump(*["x" * 500] * 40), shows) == "x" * 80
