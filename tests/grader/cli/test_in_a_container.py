"""The doctor and a grade as the child of process 1 of a pid namespace, as in a container.

Its process ids are not those of the processes in the sandbox's own namespace.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ordinary_user import as_an_ordinary_user
from small_course import write_course, write_submission

ROOT = Path(__file__).parents[3]
PID_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
# The processes that end first use up the ids that processes in the sandbox's namespace will have.
SCRIPT = """
for _ in {1..20}; do /bin/true; done
$PYTHON -m gradsync doctor
out=$(mktemp -d)
$PYTHON -m gradsync grade submission --out $out >&2
cat $out/gradebook.csv
rm -r $out
"""


@pytest.fixture
def course(tmp_path):
    tmp_path.chmod(0o755)  # for the ordinary user
    write_course(tmp_path)
    write_submission(tmp_path / "submission/phase1")
    return tmp_path


def output_of(course, *command):
    """Return the output of the script in a pid namespace that this command creates."""
    path = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "bash", "-c", SCRIPT],
        cwd=course,
        env={**path, "PYTHON": sys.executable, "GRADSYNC_DATA": "/nowhere"},  # no download
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return " ".join((done.stdout + done.stderr).split())


def assert_sandbox_and_grade_work(output):
    assert "bubblewrap works" in output
    assert "submission,100.0,100.0," in output


@pytest.mark.skipif(os.geteuid() != 0, reason="the other test is for ordinary users")
def test_root_can_grade(needs_sandbox, course):
    output = output_of(course, *PID_NAMESPACE)

    assert_sandbox_and_grade_work(output)


@pytest.mark.slow
def test_an_ordinary_user_can_grade(needs_sandbox, course):
    own_ids = ("--user", "--map-current-user")
    user = as_an_ordinary_user(ROOT, course)

    output = output_of(course, *user, *PID_NAMESPACE, *own_ids)

    assert_sandbox_and_grade_work(output)


def test_a_container_that_masks_parts_of_proc_is_refused_with_advice(needs_sandbox, course):
    masks = ("bwrap", "--unshare-user", "--unshare-pid", "--uid", "0", "--gid", "0")
    masked = (*masks, "--cap-add", "ALL", "--dev-bind", "/", "/", "--proc", "/proc")

    output = output_of(course, *masked, "--")

    assert output.count("mount: Operation not permitted") == 3  # doctor's own process; 2 commands
    assert output.count("systempaths=unconfined") == 2
