#!/usr/bin/env bash
# Grade one submission in a container: grade.sh FORMAT SUBMISSION RESULTS
#
# FORMAT is a format of `gradsync export --to`. The course is in the folder `course` beside this script;
# $PYTHON is a Python that has gradsync. If the grader fails, no results are written: the platform
# then reports a failure, and the learner does not get 0 points.
set -uo pipefail

format=$1
submission=$2
results=$3
cd "$(dirname "${BASH_SOURCE[0]}")/course" || exit 3
python=${PYTHON:-python3}
grades=$(mktemp -d)
trap 'rm -rf "$grades"' EXIT

# All runs of the autograder use one seed, so that a learner who hands in again gets the same inputs.
options=(--seed "$(cat ../seed.txt)")
if ! "$python" -m gradsync.exporting.probe; then
  options+=(--unsafe-no-sandbox)
fi
# The submission becomes the only one of a class. So a submission without the course's files also gets
# a result: unreadable.
mkdir "$grades/class" && cp -R "$submission" "$grades/class/submission" || exit 3
"$python" -m gradsync grade "$grades/class" --out "$grades/out" "${options[@]}" || exit
"$python" -m gradsync export "$grades/out" --to "$format" --into "$results"
