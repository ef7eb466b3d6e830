"""Messages on files that can't be imported: pure functions."""

import pytest

from gradsync.ranks.failures import exceptions, import_errors
from gradsync.records import Diagnosis, Failure


def described(type_, message="", *frames, **more):
    header = {"type": type_, "message": message, "frames": list(frames), **more}
    return exceptions.raised(exceptions.Raised.read(header), (0, 1))


def outside(line, source, file="template_trainer.py"):
    return [f"{file}:{line}", "<module>", source]


def test_a_syntax_error_has_its_line_a_text_and_a_mark():
    failure = described(
        "SyntaxError", "'(' was never closed", outside(9, "x = ("), marked=["x = (1,\n", 5]
    )

    assert failure.diagnosis.explanation == (
        "template_trainer.py has a syntax error in line 9: '(' was never closed. "
        "Close the bracket, or remove it."
    )
    assert failure.traceback == "x = (1,\n    ^"
    assert failure.diagnosis.whole_file


def test_the_mark_is_below_its_character_in_long_lines():
    line = " " * 40 + "a" * 100 + "?" + "b" * 100

    shown, mark = import_errors.marked_line(line, 141).split("\n")

    assert shown[mark.index("^")] == "?"
    assert len(shown) <= import_errors.WIDEST


def test_an_exception_outside_functions_is_an_import_that_failed():
    failure = described(
        "ValueError", "no", outside(90, "train(4)"), ["template_trainer.py:7", "train", "raise"]
    )

    assert failure.diagnosis.where == "template_trainer.py:90"
    assert "line 90 raises ValueError: no (at template_trainer.py:7)." in (
        failure.diagnosis.explanation
    )
    assert 'if __name__ == "__main__":' in failure.diagnosis.explanation


def test_a_failing_definition_gets_no_advice_to_move_it():
    failure = described(
        "NameError", "name 'nn' is not defined", outside(5, "class Net(nn.Module):")
    )

    assert "line 5 raises NameError" in failure.diagnosis.explanation
    assert "__main__" not in failure.diagnosis.explanation


def test_a_cell_of_a_notebook_is_not_a_file():
    failure = described("ValueError", "no", ["In [3]:1", "<module>", "int('x')"])

    assert failure.diagnosis.explanation == "Ranks 0 and 1 raised ValueError at In [3]:1: no."


def test_an_endless_import_is_reported_as_such():
    loop = Failure(
        "timeout", Diagnosis("too-slow", (0,), "It did not finish.", "template_trainer.py:3")
    )

    text = exceptions.on_import(loop, "template_trainer.py").diagnosis.explanation

    assert "the import does not end. It is still at template_trainer.py:3." in text
    assert "__main__" in text


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("numpi", "Did you mean numpy?"),
        ("template_data_loaders", "Did you mean template_data_loader?"),
        ("jason", "Did you mean json?"),
        ("my_utils", "only the course's files are handed in"),
        ("my_utils.shapes", "move the code that you need into template_trainer.py"),
    ],
)
def test_a_missing_module_is_misspelt_or_a_helper(module, said):
    message = f"No module named '{module}'"
    on_import = described("ModuleNotFoundError", message, outside(2, f"import {module}"))
    later = described("ModuleNotFoundError", message, ["template_trainer.py:8", "train", "import"])

    assert said in on_import.diagnosis.explanation
    assert said in later.diagnosis.explanation


def test_a_misspelt_function_is_suggested():
    failure = described(
        "AttributeError",
        "module has no attribute",
        missing="average_gradients",
        module="template_trainer.py",
        defined=["averge_gradients", "train"],
    )

    assert failure.diagnosis.explanation == (
        "template_trainer.py does not define average_gradients. It defines averge_gradients: "
        "did you mean average_gradients?"
    )


def test_a_learners_not_implemented_error_is_unfinished():
    row = ["template_trainer.py:8", "evaluate", "raise NotImplementedError"]

    assert described("NotImplementedError", "", row, by_user=True).status == "unfinished"
    assert described("NotImplementedError", "later", row, by_user=True).detail == "evaluate"
    assert described("NotImplementedError", "sparse", row).status == "error"  # raised by torch


@pytest.mark.parametrize(
    ("type_", "message", "said"),
    [
        ("TypeError", "'method' object is not iterable", "Are the parentheses of a call missing"),
        (
            "RuntimeError",
            "Distributed package doesn't have NCCL built in",
            "There is no GPU: use the gloo backend.",
        ),
        ("AssertionError", "Torch not compiled with CUDA enabled", "else the CPU."),
        (
            "AttributeError",
            "'list' object has no attribute 'set_epoch'",
            "check before you call it",
        ),
        ("EOFError", "EOF when reading a line", "Remove input()"),
        ("BdbQuit", "", "breakpoint()"),
        (
            "ValueError",
            "trying to initialize the default process group twice!",
            "use it instead of starting another",
        ),
    ],
)
def test_a_common_error_gets_a_hint_after_its_line(type_, message, said):
    seen = described(type_, message, ["template_trainer.py:8", "train", "x"]).diagnosis.explanation

    assert said in seen.partition(" at template_trainer.py:8")[2]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Sampler() takes no arguments", "Is __init__ misspelt?"),
        (
            "Sampler.__init__() takes 3 positional arguments but 4 were given",
            "Add `self` if it is missing",
        ),
        (
            "train() missing 1 required positional argument: 'lr'",
            "Restore the template's parameters.",
        ),
    ],
)
def test_mismatched_arguments_name_a_likely_cause(message, said):
    assert said in described("TypeError", message).diagnosis.explanation


def test_a_process_group_that_starts_on_import_is_reported_as_such():
    message = "trying to initialize the default process group twice!"
    inside = ["template_trainer.py:7", "setup", "dist.init_process_group()"]

    failure = described("ValueError", message, outside(90, "setup()"), inside)

    text = failure.diagnosis.explanation
    assert "line 90 starts a process group" in text
    assert "(at template_trainer.py:7)" in text
    assert "twice" not in text
    assert import_errors.GUARD in text


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ("Batch = tuple[Tensr, Tensor]", import_errors.MISSPELT),
        ("limit: int = Tensr", import_errors.MISSPELT),
        ("train(Tensr)", import_errors.GUARD),
        ("if size == Tensr:", import_errors.GUARD),
        ("class Net(Tensr):", ""),
    ],
)
def test_advice_on_an_unknown_name_depends_on_the_line(source, advice):
    text = described("NameError", "name 'Tensr' is not defined", outside(3, source)).diagnosis

    assert text.explanation.endswith(f"is not defined.{advice and f' {advice}'}")
