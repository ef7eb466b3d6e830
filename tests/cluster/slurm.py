"""A Slurm cluster on this machine: munged, slurmctld, and a slurmd for each node, as root."""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
SECONDS = 30  # for the nodes to become idle
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
CONF = """
ClusterName=gradsync
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
MinJobAge=600
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=ALL Default=YES MaxTime=60 PriorityTier=1 GraceTime=5
PartitionName=urgent Nodes=ALL MaxTime=60 PriorityTier=2
"""
NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=4 State=UNKNOWN\n"
)


class Slurm:
    """Commands for a running cluster."""

    def __init__(self, folder: Path) -> None:
        self._environ = {
            **{name: value for name, value in os.environ.items() if "SLURM" not in name},
            "SLURM_CONF": str(folder / "slurm.conf"),
        }

    def run(self, *command, cwd=None, **environ) -> str:
        """Run a command of Slurm; it must succeed. Return its output."""
        done = subprocess.run(
            [str(word) for word in command],
            cwd=cwd,
            env={**self._environ, **environ},
            check=False,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, script, *arguments, cwd, options=(), **environ) -> str:
        """Submit a script and return the job's number."""
        command = ["sbatch", "--parsable", *options, script, *arguments]
        return self.run(*command, cwd=cwd, **environ).strip()

    def state(self, job: str) -> str:
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        return shown.partition("JobState=")[2].split()[0]

    def wait(self, job: str, seconds: float) -> str:
        """Return the final state of a job."""
        until = time.monotonic() + seconds
        while (state := self.state(job)) not in ENDED and time.monotonic() < until:
            time.sleep(0.2)
        return state


@contextmanager
def slurm_cluster(nodes: int):
    """Run a cluster of nodes n1, n2, ... with four processors each until the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="gradsync-slurm-"))
    folder.chmod(0o755)  # munged runs as another user
    with ExitStack() as running:
        running.callback(shutil.rmtree, folder, ignore_errors=True)
        _start_munged(folder, running)
        _write_conf(folder, nodes)
        conf = str(folder / "slurm.conf")
        running.enter_context(_daemon("slurmctld", "-D", "-f", conf))
        for node in range(1, nodes + 1):
            running.enter_context(_daemon("slurmd", "-D", "-N", f"n{node}", "-f", conf))
        slurm = Slurm(folder)
        _await_nodes(slurm, nodes, folder)
        yield slurm


def _start_munged(folder: Path, running: ExitStack) -> None:
    home = folder / "munge"
    home.mkdir()
    key = home / "key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    for path in (home, key):
        shutil.chown(path, "munge")
    socket_path = folder / "munge.socket"
    shutil.chown(folder, "munge")
    running.enter_context(
        _daemon(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={socket_path}",
            f"--pid-file={home / 'pid'}",
            f"--log-file={home / 'log'}",
            f"--seed-file={home / 'seed'}",
            user="munge",
        )
    )
    until = time.monotonic() + SECONDS
    while not socket_path.exists() and time.monotonic() < until:
        time.sleep(0.05)


def _write_conf(folder: Path, nodes: int) -> None:
    (folder / "state").mkdir()
    ports = _free_ports(nodes + 1)
    text = CONF.format(host=socket.gethostname(), folder=folder, port=ports[0])
    lines = [NODE.format(name=f"n{i}", port=ports[i]) for i in range(1, nodes + 1)]
    (folder / "slurm.conf").write_text(text + "".join(lines))


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


@contextmanager
def _daemon(*command, user=None):
    process = subprocess.Popen(
        command, user=user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_nodes(slurm: Slurm, nodes: int, folder: Path) -> None:
    until = time.monotonic() + SECONDS
    shown = ""
    while time.monotonic() < until:
        try:
            shown = slurm.run("sinfo", "-h", "-N", "-p", "all", "-o", "%t")
        except AssertionError as problem:
            shown = str(problem)
        if shown.split() == ["idle"] * nodes:
            return
        time.sleep(0.2)
    logs = "".join(path.read_text()[-500:] for path in folder.glob("*.log"))
    raise AssertionError(f"the nodes of the cluster are not idle: {shown}\n{logs}")
