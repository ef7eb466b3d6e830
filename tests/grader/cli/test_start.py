"""`gradsync start` writes a copy of the course, and says how to begin."""

from typer.testing import CliRunner

from gradsync.cli.app import app


def started(folder):
    done = CliRunner().invoke(app, ["start", str(folder)])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_copy_has_everything_and_the_next_step_is_named(tmp_path):
    output = started(tmp_path / "my-course")

    for part in ("phase1/template_trainer.py", "solutions/phase1", "tests/hidden/phase1"):
        assert (tmp_path / "my-course" / part).exists()
    assert f"cd {tmp_path / 'my-course'}\n  gradsync check" in output
    assert f"the first lesson in {tmp_path / 'my-course' / 'notebooks'}" in output


def test_a_second_start_keeps_edits(tmp_path):
    started(tmp_path / "my-course")
    own = tmp_path / "my-course/phase1/template_trainer.py"
    own.write_text("# mine\n")

    output = started(tmp_path / "not-there/../my-course")

    assert own.read_text() == "# mine\n"
    assert "phase1/template_trainer.py: it was edited" in output.replace("\n", "")
