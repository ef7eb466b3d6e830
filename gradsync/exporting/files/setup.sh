#!/usr/bin/env bash
# Gradescope runs this once, when it builds the autograder's image.
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq --yes bubblewrap python3 python3-venv
python3 -m venv /autograder/venv
cd /autograder/source
# The CPU build of torch: the default one of PyPI comes with several gigabytes for GPUs.
export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
/autograder/venv/bin/pip install --quiet --requirement requirements.txt
