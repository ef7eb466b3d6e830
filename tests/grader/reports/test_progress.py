"""A learner's progress in the terminal."""

from dataclasses import replace

from report_samples import SUM_NOT_MEAN, report, verdict

from gradsync.records import Diagnosis
from gradsync.reports import progress, terminal

BROKEN = Diagnosis(
    "exception",
    (),
    "template_trainer.py has a syntax error in line 9: expected ':'.",
    "template_trainer.py:9",
    whole_file=True,
)


def broken(name):
    message = f"{BROKEN.explanation}\n\n  if x\n      ^"
    return verdict(name, "error", message=message, diagnosis=BROKEN)


def test_one_syntax_error_is_one_message():
    seen = progress.render(report(verdict("evaluate"), broken("train"), broken("train_step")))

    assert seen.count("syntax error") == 1
    assert seen.count("because of template_trainer.py:9, see below") == 2
    assert "\n      if x\n          ^\n" in seen
    assert "Next: fix template_trainer.py:9" in seen


def test_a_mistake_is_shown_beside_its_exercise():
    seen = progress.render(report(verdict("train", "failed", message="it is wrong"), verdict()))

    assert "train             it is wrong" in seen
    assert "1 of 2 exercises passes the visible tests, 1 mistake to fix." in seen
    assert "Next: gradsync check train shows the details" in seen


def test_the_next_step_names_the_lesson_the_section_and_the_hint():
    unwritten = verdict("train", "unfinished", guide="Training")

    seen = progress.render(
        report(verdict("evaluate"), unwritten), lessons={"phase1/train": "notebooks/05_end.ipynb"}
    )

    words = " ".join(seen.partition("Next: ")[2].split())
    assert words.startswith("write train in ")
    assert words.endswith(
        "lesson notebooks/05_end.ipynb read phase1/GUIDELINES.md, “Training” "
        "hint gradsync hint train"
    )


def test_the_visible_tests_show_no_points():
    seen = progress.render(report(verdict("train"), verdict("evaluate")))

    assert "The visible tests pass. The hidden tests, which give the points, check the same" in seen


def test_a_written_exercise_names_the_unwritten_one_that_it_calls():
    text = "phase1/train_step needs phase1/average_gradients, which is not written yet."
    own = "phase1/average_gradients is not written yet."

    seen = progress.render(
        report(
            verdict("average_gradients", "unfinished", message=own),
            verdict("train_step", "unfinished", message=text),
        ),
        width=120,
    )

    assert "average_gradients to write" in seen
    assert text in seen


def test_mistakes_are_counted_by_their_causes():
    seen = progress.render(
        report(
            verdict("average_gradients", "failed", diagnosis=SUM_NOT_MEAN),
            verdict("average_gradients", "failed", message="another test of it"),
            replace(verdict("train", "failed", message="x"), causes=("phase1/average_gradients",)),
            verdict("evaluate", "failed", message="it is wrong"),
        )
    )

    assert "2 mistakes to fix." in seen


def test_one_exercise_in_detail_shows_no_points():
    failed = verdict(status="failed", diagnosis=SUM_NOT_MEAN)

    seen = terminal.render(report(verdict(), failed), with_points=False)

    assert "points" not in seen
    assert " / " not in seen
    assert "1 mistake to fix." in seen


def test_an_exception_names_the_section_to_read():
    raised = Diagnosis("exception", (0,), "rank 0 raised ValueError")

    seen = terminal.render(
        report(verdict(status="error", diagnosis=raised, guide="Gradient aggregation"))
    )

    assert "read     phase1/GUIDELINES.md, “Gradient aggregation”" in seen
