"""A class that is graded on a Dask cluster while one of its workers is killed."""

import subprocess
import sys

import pytest
from cluster_of_two import cluster_of_two
from processes import eventually
from small_course import RIGHT, WRONG, write_course, write_submission


def gradsync(course, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "gradsync", *map(str, arguments)],
        cwd=course.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def klass(tmp_path):
    for number in range(8):
        write_submission(tmp_path / "class" / f"learner-{number}", WRONG if number % 3 else RIGHT)
    return tmp_path / "class"


@pytest.mark.slow
def test_a_cluster_makes_the_same_gradebook_if_a_worker_is_killed(klass, tmp_path):
    course = write_course(tmp_path / "course")
    options = ["--seed", 3, "--unsafe-no-sandbox"]
    alone = gradsync(course, "grade", klass, "--out", tmp_path / "alone", *options)
    alone.communicate()
    with cluster_of_two() as cluster:
        assert eventually(cluster.contact.exists)
        out = tmp_path / "out"
        run = gradsync(course, "grade", klass, "--out", out, "--cluster", cluster.contact, *options)
        assert eventually(lambda: len(list(out.glob("*/report.json"))) >= 2, seconds=60)
        cluster.kill_a_worker()
        said, problems = run.communicate(timeout=120)

    assert run.returncode == 0, problems
    assert "8 graded" in said
    books = [(tmp_path / name / "gradebook.csv").read_bytes() for name in ("alone", "out")]
    assert books[0] == books[1]


@pytest.mark.slow
def test_workers_that_die_at_the_end_do_not_fail_the_run():
    code = "import os, sys; from gradsync.grading.processes import cluster\n"
    code += "cluster.end_processes = lambda: os._exit(1)  # on each worker\n"
    code += "print(list(cluster.on_cluster(sys.argv[1])(iter([]))))"
    with cluster_of_two() as cluster:
        assert eventually(cluster.contact.exists)
        done = subprocess.run(
            [sys.executable, "-c", code, str(cluster.contact)],
            capture_output=True,
            text=True,
            check=False,
        )

    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


@pytest.mark.slow
def test_a_missing_scheduler_is_one_clear_error():
    code = "from gradsync.grading.processes import cluster; cluster.SECONDS = 0.2\n"
    code += "cluster.on_cluster('tcp://127.0.0.1:9')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "UnusableInput: There is no Dask scheduler at tcp://127.0.0.1:9" in done.stderr


@pytest.mark.slow
def test_a_missing_file_of_a_scheduler_is_one_clear_error():
    code = "from gradsync.grading.processes import cluster; cluster.on_cluster('nosuch.json')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "UnusableInput: nosuch.json is neither the address of a Dask scheduler" in done.stderr
