"""The output of ranks in the report of a failed test."""

import pytest
from report_samples import SCRIPT, report, verdict
from small_course import write_course, write_submission

from gradsync.grading.grade import grade
from gradsync.grading.suite.verdicts import MAX_BLOCKS, MAX_LINE, MAX_LINES, last_lines
from gradsync.records import Printed
from gradsync.reports import html, terminal
from gradsync.submission import read_submission

HOSTILE = f"{SCRIPT}\x1b[2J\x1b]0;title\x07\u202egnp\x00 [bold]"


def test_equal_outputs_of_ranks_are_shown_once():
    assert last_lines(["a\nb\n", "a\nc", "a\nb", ""]) == (
        Printed((0, 2), ("a", "b")),
        Printed((1,), ("a", "c")),
    )


def test_the_last_lines_are_shown_and_earlier_ones_counted():
    [block] = last_lines(["\n".join(map(str, range(100)))])

    assert block.lines == tuple(str(number) for number in range(100 - MAX_LINES, 100))
    assert block.omitted == 100 - MAX_LINES


def test_the_number_and_length_of_lines_are_limited():
    blocks = last_lines([f"{rank}" + "x" * 10**6 + "\n" for rank in range(64)])

    assert len(blocks) == MAX_BLOCKS
    assert {len(line) for block in blocks for line in block.lines} == {MAX_LINE}


def test_messages_of_gloo_and_folders_are_removed():
    noise = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks\n"

    noise += "[W1127 08:03:12.587890601 socket.cpp:207] [c10d] The hostname of the client socket\n"
    noise += "frame #0: c10::Error::Error(c10::SourceLocation) + 0x9d\n"

    assert last_lines([noise, noise]) == ()
    assert last_lines([f"{noise}/tmp/x/phase1/a.py:3: UserWarning: b"], "/tmp/x/") == (
        Printed((0,), ("phase1/a.py:3: UserWarning: b",)),
    )


def test_control_characters_and_escape_sequences_are_removed():
    [block] = last_lines([f"50%\r100%\r\n{HOSTILE}\n\x1b[31mred\x1b[0m\n"])

    assert block.lines[:2] == ("50%", "100%")
    assert block.lines[-1] == "red"
    assert not {"\x1b", "\x07", "\x00", "\u202e"} & set("".join(block.lines))


def shown(render):
    blocks = (Printed((0, 1, 2), ("first", HOSTILE), 7), Printed((3,), ("alone",)))
    return render(report(verdict(status="failed", output=blocks)))


def test_a_terminal_shows_the_output_rank_by_rank():
    text = shown(terminal.render)

    assert "printed by ranks 0, 1 and 2, after 7 more lines:" in text
    assert "printed by rank 3:" in text
    assert "[bold]" in text
    assert not {"\x1b", "\x07", "\x00", "\u202e"} & set(text)


def test_a_page_shows_the_output_escaped():
    page = shown(html.render)

    assert "Printed by ranks 0, 1 and 2, after 7 more lines:" in page
    assert "alone" in page
    assert SCRIPT not in page
    assert "&lt;script&gt;alert(1)" in page
    assert not {"\x1b", "\x07", "\x00", "\u202e"} & set(page)


PRINTS = """
import sys

def double(number):
    print("I was given a number")
    print("status: passed, points 2.0", file=sys.stderr)
    return number + {off}
"""


@pytest.mark.parametrize(("off", "blocks"), [("1", 1), ("number", 0)])
def test_output_is_shown_for_failed_tests_and_changes_no_points(tmp_path, off, blocks):
    course = write_course(tmp_path / "course")
    folder = write_submission(tmp_path / "ada" / "phase1", PRINTS.format(off=off)).parent
    own = read_submission(folder, course, "ada")

    verdicts = grade(own, course, phases=["phase1"], seed=3).verdicts

    for one in verdicts:
        assert (one.status == "passed") == (blocks == 0)
        assert len(one.output) == blocks
        for block in one.output:
            assert block.lines == ("I was given a number", "status: passed, points 2.0")
