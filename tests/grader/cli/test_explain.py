"""`gradsync explain`: all codes by section of the guide, and one code with its lines."""

import sys
from pathlib import Path

import pytest
from learners_copy import CODES, write_whole_course

from gradsync.cli import exit_status
from gradsync.course.catalogue import CourseError, find_course
from gradsync.course.codes import meanings

REAL = find_course(Path(__file__).parent)


@pytest.fixture
def explain(monkeypatch, capsys):
    """Return a function that runs the command in a folder; it returns the status and the output."""

    def run(folder, *arguments, columns=80):
        monkeypatch.chdir(folder)
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "argv", ["gradsync", "explain", *arguments])
        status = exit_status.run()
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


@pytest.fixture
def course(tmp_path):
    return write_whole_course(tmp_path / "course")


def plain(output):
    return " ".join(output.split())


def test_all_codes_are_listed_by_section_with_their_causes(explain):
    status, out, _ = explain(REAL.root)

    text = plain(out)
    assert status == 0
    assert [m for m in meanings(REAL) if f"{m.code} {m.cause}" not in text] == []
    assert text.count("Pipelines (phase2)") == 1
    assert max(map(len, out.splitlines())) <= 80


def test_a_code_has_its_cause_its_lines_and_the_section_to_read(explain):
    status, out, _ = explain(REAL.root, "sum-not-mean")

    assert status == 0
    assert "It works with 2 ranks and diverges with 8." in plain(out)
    assert out.index("─ wrong ─") < out.index("─ right ─") < out.index("p.grad /= world")
    assert "Read: phase1/GUIDELINES.md, “Gradient aggregation”" in out


def test_each_cause_of_a_code_is_explained(explain):
    _, out, _ = explain(REAL.root, "shape-mismatch")

    causes = [m.cause for m in meanings(REAL) if m.code == "shape-mismatch"]
    assert len(causes) > 3
    assert all(cause in plain(out) for cause in causes)


def test_it_works_in_the_course_for_nbgrader(explain):
    folder = REAL.root / "notebooks/nbgrader/source/phase2"

    assert explain(folder, "not-strided") == explain(REAL.root, "not-strided")


def test_lines_are_wrapped_in_a_narrow_terminal(explain):
    for code in ("no-overlap", "state-lost"):
        _, out, _ = explain(REAL.root, code, columns=40)

        assert max(map(len, out.splitlines())) <= 40


def test_the_case_of_a_code_does_not_matter(explain):
    assert explain(REAL.root, "SUM-not-mean") == explain(REAL.root, "sum-not-mean")


@pytest.mark.parametrize(
    ("code", "close"),
    [
        ("sum-not-maen", "sum-not-mean"),
        ("deadlock", "deadlock-rank-missing or deadlock-order-differs"),
    ],
)
def test_an_unknown_code_gets_one_line_with_similar_codes(explain, code, close):
    status, out, err = explain(REAL.root, code)

    assert (status, out) == (2, "")
    assert f"There is no code {code!r}. Did you mean {close}" in err
    assert err.count("\n") == 1


def test_a_code_like_no_other_gets_no_suggestion(explain):
    status, _, err = explain(REAL.root, "42")

    assert status == 2
    assert "There is no code '42'. `gradsync explain` lists all codes" in err


def test_a_course_has_its_own_codes_beside_those_of_any_course(explain, course):
    _, own, _ = explain(course.root, "not-doubled")
    _, common, _ = explain(course.root, "deadlock-rank-missing")
    status, _, err = explain(course.root, "sum-not-mean")

    assert "phase1/double" in own
    assert "What you may see: Two stays two." in own
    assert "Read: phase1/GUIDELINES.md, “Doubling”" in own
    assert "Read:" not in common  # its guide has no section on deadlocks
    assert "dist.all_reduce(total)" in common
    assert status == 2, err


def test_a_course_without_codes_has_those_of_any_course(explain, course):
    (course.root / "phase1/codes.toml").unlink()

    _, out, _ = explain(course.root)

    assert "deadlock-rank-missing" in out
    assert "(phase1)" not in out


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[meaning", "can't be read as a list of codes"),
        ("", "can't be read as a list of codes: 'meaning'"),
        (CODES.replace("cause", "clause"), "unexpected keyword argument 'clause'"),
        (CODES.replace('"double"', '"halve"'), "phase1 has no exercise 'halve'"),
    ],
)
def test_a_damaged_list_of_codes_is_named(course, text, reason):
    (course.root / "phase1/codes.toml").write_text(text)

    with pytest.raises(CourseError, match=r"phase1.codes\.toml") as caught:
        meanings(course)
    assert reason in str(caught.value)
