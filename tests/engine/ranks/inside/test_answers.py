"""An exception on a rank, as plain data for the trusted side."""

import inspect
import re

import pytest

from gradsync.ranks.inside.answers import describe_exception


def test_an_exception_is_plain_data():
    def fail():
        raise ValueError("because")

    with pytest.raises(ValueError, match="because") as caught:
        fail()

    reported = describe_exception(caught.value, ())
    assert (reported["type"], reported["message"]) == ("ValueError", "because")
    assert re.fullmatch(r"test_answers.py:\d+", reported["frames"][-1][0])
    assert reported["frames"][-1][1] == "fail"


def test_folders_are_removed_from_messages():
    with pytest.raises(ImportError) as caught:
        raise ImportError("cannot import name 'a' from 'b' (/tmp/once/phase1/b.py)")

    reported = describe_exception(caught.value, ("/elsewhere", "/tmp/once"))
    assert reported["message"] == "cannot import name 'a' from 'b' (phase1/b.py)"


def test_memory_addresses_are_removed_from_messages():
    with pytest.raises(TypeError) as caught:
        raise TypeError(f"can't send {object()}")

    assert describe_exception(caught.value, ())["message"] == "can't send <object object>"


def test_a_syntax_error_is_reported_with_its_line():
    with pytest.raises(SyntaxError) as caught:
        compile("def f(:", "/submission/template_trainer.py", "exec")

    reported = describe_exception(caught.value, ("/submission",))
    assert reported["frames"] == [["template_trainer.py:1", "<module>", ""]]


def test_a_name_that_a_file_lacks_is_reported():
    with pytest.raises(AttributeError) as caught:
        inspect.no_such_name  # noqa: B018

    assert describe_exception(caught.value, ())["missing"] == "no_such_name"
