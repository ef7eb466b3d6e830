"""`run_ranks(script=...)` runs a program as torchrun does."""

import pytest

from gradsync import RankFailure, run_ranks

PROGRAM = """
import argparse
import os
import sys

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--status", type=int, default=0)


def main():
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    for _ in range(arguments.steps - dist.get_rank() * (arguments.steps > 2)):
        dist.all_reduce(torch.ones(2))
    print("local rank", os.environ["LOCAL_RANK"])
    dist.destroy_process_group()
    sys.exit(arguments.status)


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def test_a_program_runs_with_its_arguments_and_the_variables_of_torchrun(program):
    seen = run_ranks(script=program, args=["--steps", 2], world_size=2)

    assert seen.output == ("local rank 0\n", "local rank 1\n")
    assert [call.op for call in seen.collectives(1)][-3:-1] == ["all_reduce", "all_reduce"]


def test_an_exit_status_other_than_0_is_a_failure(program):
    with pytest.raises(RankFailure, match=r"exited with SystemExit\(3\) at train.py:") as caught:
        run_ranks(script=program, args=["--steps", 1, "--status", 3], world_size=2)

    assert "remove the exit" not in str(caught.value)


def test_a_deadlock_of_a_program_is_proved(program):
    text = "Rank 1 called destroy_process_group, at train.py:[0-9]+, without calling all_reduce #5"

    with pytest.raises(RankFailure, match=text):
        run_ranks(script=program, args=["--steps", 5], world_size=2)


def test_a_function_and_a_script_exclude_each_other(program):
    with pytest.raises(TypeError, match="either a function or `script=`"):
        run_ranks(print, 2, script=program)
