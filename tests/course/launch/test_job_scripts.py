"""The Slurm scripts of `cluster`, without Slurm."""

import subprocess

import pytest

from gradsync.course.catalogue import find_course

SCRIPTS = sorted((find_course().root / "cluster").glob("*.sbatch"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_outside_the_courses_folder_a_script_prints_where_to_run_it(script, tmp_path):
    done = subprocess.run(
        ["bash", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert done.stderr == (
        f"cluster/job.sh is not in {tmp_path}. Run in the course's folder: "
        f"sbatch cluster/{script.name}\n"
    )
