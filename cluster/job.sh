# The common part of the jobs in this folder. Each script sources it by its path in the course's
# folder: Slurm runs a copy of the script, so the script's own path can't be used.

# shellcheck shell=bash
set -euo pipefail

# The environment in which gradsync is installed. Set VENV to use another one.
VENV=${VENV:-.venv}
if [ -r "$VENV/bin/activate" ]; then
    source "$VENV/bin/activate"
fi
if ! command -v gradsync >/dev/null; then
    echo "gradsync is not in PATH, and $VENV has no bin/activate." \
        "Run sbatch in the course's folder, or set VENV." >&2
    exit 1
fi

# Two jobs may share a node, so each has its own port.
export MASTER_PORT=${MASTER_PORT:-$((29500 + SLURM_JOB_ID % 1000))}

# Run one `gradsync` per node; it starts the ranks of its node. The first node is the master.
on_each_node() {
    local status=0
    srun --ntasks-per-node=1 --kill-on-bad-exit=1 gradsync "$@" || status=$?
    # Slurm sends SIGTERM to a preempted job, and requeues it only if the job is still running at the
    # end of its grace time. Slurm then kills this script, as after scancel or the time limit.
    if [ "$status" -eq 143 ]; then
        sleep 300
    fi
    return "$status"
}
