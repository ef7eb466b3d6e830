#!/bin/sh
# Install a wheel in a bare environment, and try the four entrances: sh checks/entrances.sh WHEEL
# PYTHON chooses the interpreter; pip's settings choose the index.
set -eu
wheel=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"${PYTHON:-python3}" -m venv env
PATH=$folder/env/bin:$PATH
pip install --quiet "gradsync[course,review] @ file://$wheel"

echo "== learn: from nothing to a checked first exercise"
gradsync start my-course
cd my-course
gradsync check | grep "PaddedDistributedSampler"
cp solutions/phase1/template_data_loader.py phase1/
gradsync check PaddedDistributedSampler --exit-code
cd ..

echo "== teach: grade a submission with the hidden tests"
mkdir -p class/ada/phase1
cp my-course/solutions/phase1/*.py class/ada/phase1/
sandbox=
command -v bwrap > /dev/null || sandbox=--unsafe-no-sandbox
gradsync grade class --phase 1 --out grades $sandbox
grep "^ada,100.0,100.0" grades/gradebook.csv

echo "== test: a function on ranks, in pytest"
cat > test_ranks.py <<'PYTHON'
import torch
import torch.distributed as dist


def test_ranks_all_reduce(ranks):
    def total(rank):
        tensor = torch.tensor([float(rank)])
        dist.all_reduce(tensor)
        return tensor.item()

    assert list(ranks(total, world_size=3)) == [3.0, 3.0, 3.0]
PYTHON
python -m pytest -q test_ranks.py

echo "== review: a script with a mistake"
cat > train.py <<'PYTHON'
import torch.distributed as dist

dist.init_process_group()
if dist.get_rank() == 0:
    dist.barrier()
PYTHON
gradsync review train.py > findings.txt && exit 1
grep DDP015 findings.txt
