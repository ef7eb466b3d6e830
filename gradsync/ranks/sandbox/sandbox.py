"""Trusted: limit what a rank that runs a learner's code can see and use.

There are two bubblewrap sandboxes, one inside the other. The outer one contains the warm process
from start to end. It hides nothing, but makes the warm process root of a user namespace, for any
user: it can create namespaces and enter them, and its /proc lists its own descendants only.

The inner one is created for each run, in milliseconds. The run's ranks are forked from the warm
process and enter the sandbox before they read any data of the learner. There they have Python
and the system, read-only, an empty home of limited size, a private loopback interface, no other
processes and no capabilities. The warm process limits the memory, processes and files that all
ranks of a run use together. If it could join a control group, the kernel limits them too.
"""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import site
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from gradsync.errors import SandboxError
from gradsync.ranks.protocol.events import MAX_RANKS
from gradsync.ranks.protocol.user_files import CARRIED, PACKAGE
from gradsync.ranks.sandbox import namespaces, seccomp
from gradsync.ranks.sandbox.cgroups import ControlGroup, Refusals
from gradsync.temporary_folders import own_folder
from gradsync.text import size_text

GIB, MIB = 2**30, 2**20
RUN_MEMORY = 2 * GIB  # for all ranks of a run and the processes they start
TASKS = 256  # their processes and threads
OWN_TASKS = 8  # at most so many more of the warm process itself
DISK = 512 * MIB  # for each folder that ranks can write to, such as /tmp and /dev/shm
FILES = 16_384  # in each of these folders: an empty file takes memory, too
FILE_SIZE = 256 * MIB
# Of a process. It also limits the descriptors that all ranks can have in flight through sockets:
# the kernel counts these per user, and refuses more than the usual limit of 1024 open files.
OPEN_FILES = 512
ALL_OPEN_FILES = 8192  # of all ranks; a socket can hold 200 KB of unread data
CPU_SECONDS = 600  # of a process
SIGNALS = 1024  # pending signals and timers: the kernel limits them per user
LIMITS = {
    resource.RLIMIT_FSIZE: FILE_SIZE,
    resource.RLIMIT_NOFILE: OPEN_FILES,
    resource.RLIMIT_CPU: CPU_SECONDS,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_SIGPENDING: SIGNALS,
}
CREATE_SECONDS = 30.0  # for bubblewrap, which takes milliseconds on an idle machine
READ_BYTES = 4096
NOBODY = "1000"  # the ranks' user and group id
SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/sbin", "/etc/ld.so.cache", "/etc/localtime")
INSTALL = "Install it with `apt install bubblewrap` or `dnf install bubblewrap`."
ALL_OF_A_RUN = (
    namespaces.NEW_MOUNTS
    | namespaces.NEW_CGROUP
    | namespaces.NEW_UTS
    | namespaces.NEW_IPC
    | namespaces.NEW_NET
)


class Sandbox:
    """The sandbox of one run, managed by the warm process."""

    def __init__(
        self, directory: str, readable: Sequence[str], group: ControlGroup | None = None
    ) -> None:
        """Start to create it, with a new `directory` for the ranks, and `readable` folders.

        It is complete when its first process, `cat`, runs and echoes a byte for each rank.
        """
        info, info_out = os.pipe()
        self._ready, echo = os.pipe()
        keys, self._keys = os.pipe()
        rules, given = os.pipe()
        self._rules = seccomp.program()
        os.write(given, self._rules)
        os.close(given)
        self._bubblewrap = subprocess.Popen(
            [*_inner(directory, readable, rules), "--info-fd", str(info_out), "--", "cat"],
            pass_fds=[info_out, rules],
            stdin=keys,
            stdout=echo,
        )
        for end in (info_out, echo, keys, rules):
            os.close(end)
        os.write(self._keys, bytes(MAX_RANKS))
        self._first = _first_process(info)
        _limit(self._first)
        self._process = os.pidfd_open(self._first)
        self._outside = os.pidfd_open(os.getpid())
        self._namespace = _pid_namespace(self._first)
        # Each rank inherits this memory, so it does not count.
        self._shared, _ = _usage(os.getpid())
        self._directory = directory
        self.runs_low = False
        self._group = group
        self._refused = self._refusals()
        namespaces.enter(self._process, namespaces.NEW_PID)  # for ranks that are forked from now on

    def enter(self) -> None:
        """Enter the sandbox, on a newly forked rank, and drop all privileges."""
        if not os.read(self._ready, 1):
            raise SandboxError("bubblewrap could not create a sandbox.")
        # The kernel kills ranks first when memory runs out.
        Path("/proc/self/oom_score_adj").write_text("1000")
        namespaces.enter(self._process, ALL_OF_A_RUN)
        for tmpfs in _tmpfs(self._directory):
            namespaces.limit_files(tmpfs, FILES)
        namespaces.enter(self._process, namespaces.NEW_USER)
        namespaces.drop_privileges()
        _limit(0)
        os.chdir(self._directory)
        namespaces.refuse_calls(self._rules)

    def excess(self, members: Iterable[int]) -> tuple[str, str] | None:
        """Return the code and a description of a limit that the members exceed, or None.

        Sets `runs_low` to whether they use more than half of the memory.
        """
        memory = tasks = files = 0
        for pid in members:
            used, threads = _usage(pid)
            memory += max(0, used - self._shared)
            tasks += threads
            files += _count_open(pid)
        refused = self._refusals()
        self.runs_low = memory > RUN_MEMORY / 2
        if memory > RUN_MEMORY or refused.memory > self._refused.memory:
            return "out-of-memory", f"used more than {size_text(RUN_MEMORY)} of memory together"
        if tasks > TASKS or refused.tasks > self._refused.tasks:
            return "rank-crashed", f"started more than {TASKS} processes and threads"
        if files > ALL_OPEN_FILES:
            return "rank-crashed", f"opened more than {ALL_OPEN_FILES:,} files and sockets together"
        return None

    def members(self) -> set[int]:
        """Return the processes in the sandbox: ranks, and the processes they started."""
        inside = {pid for pid in _processes() if _pid_namespace(pid) == self._namespace}
        return inside - {self._first}

    def _refusals(self) -> Refusals:
        return self._group.refusals() if self._group else Refusals()

    def end(self) -> None:
        """End all its processes: the kernel kills them with the first process of the namespace."""
        with suppress(ProcessLookupError):
            os.kill(self._first, 9)

    def close(self) -> None:
        """Release it, once all its processes have ended and been reaped."""
        namespaces.enter(self._outside, namespaces.NEW_PID)
        self._bubblewrap.returncode = 0  # reaped with the others
        for end in (self._ready, self._keys, self._process, self._outside):
            os.close(end)


def outer(command: Sequence[str]) -> list[str]:
    """Return a command that runs `command` as root of new user and pid namespaces.

    Its /proc must show the new pid namespace, or an inner bubblewrap finds other processes there,
    or none. bubblewrap's own `--proc` covers parts of it, which prevents mounting another.
    """
    rights = ("--unshare-user", "--unshare-pid", "--uid", "0", "--gid", "0", "--cap-add", "ALL")
    mount_proc = (sys.executable, "-I", namespaces.__file__)
    return ["bwrap", *rights, "--dev-bind", "/", "/", "--", *mount_proc, *command]


def check(secret: Path | None = None) -> None:
    """Check that this machine can run ranks in a sandbox that hides the folder `secret`.

    Raises:
        SandboxError: it can't; the message says why and what to do.
    """
    if sys.platform != "linux":
        raise SandboxError("A sandbox needs Linux.")
    if shutil.which("bwrap") is None:
        raise SandboxError(f"bubblewrap (`bwrap`) is not installed. {INSTALL}")
    secret = None if secret is None or secret.is_relative_to(CARRIED) else secret.resolve()
    for path in map(Path, ["/usr", *_readable()]):
        if secret is not None and secret.is_relative_to(path.resolve()):
            raise SandboxError(
                f"{secret} is in {path}, which ranks must be able to read. Move the course, or "
                "install Python's environment in another place."
            )
    if problem := _try():
        raise SandboxError(
            f"bubblewrap can't create a sandbox here ({problem}). If this is a container, start it "
            "with --security-opt seccomp=unconfined --security-opt systempaths=unconfined. On "
            "Ubuntu, set the sysctl kernel.apparmor_restrict_unprivileged_userns to 0."
        )


def _try() -> str:
    """Run a program in both sandboxes; return why this failed, or ""."""
    with own_folder() as folder:
        outermost, *rest = outer([*_inner(str(folder)), "--", "true"])
        try:
            tried = subprocess.run(
                [outermost, "--die-with-parent", *rest],  # ends what the time limit leaves behind
                capture_output=True,
                text=True,
                check=False,
                timeout=CREATE_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return f"it has not finished after {CREATE_SECONDS:g} s"
    return "" if tried.returncode == 0 else tried.stderr.strip() or "it failed"


def _first_process(info: int) -> int:
    """Return the id of a sandbox's first process, which bubblewrap writes to this pipe.

    Raises:
        SandboxError: it did not write it in time. A process that it leaves behind when it fails
            keeps the pipe open.
    """
    data = b""
    until = time.monotonic() + CREATE_SECONDS
    with os.fdopen(info, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            if not (part := pipe.read(READ_BYTES)):
                return int(json.loads(data)["child-pid"])
            data += part
    raise SandboxError(f"bubblewrap has not created a sandbox within {CREATE_SECONDS:g} s.")


def _inner(directory: str, readable: Sequence[str] = (), rules: int | None = None) -> list[str]:
    """Return a command that creates a run's sandbox; append the program to run in it."""
    apart = ("user", "pid", "ipc", "net", "uts", "cgroup")
    command = ["bwrap", *(f"--unshare-{kind}" for kind in apart), "--disable-userns"]
    command += ["--uid", NOBODY, "--gid", NOBODY, "--hostname", "rank", "--clearenv"]
    command += ["--die-with-parent", "--new-session", "--as-pid-1"]
    for path in map(Path, SYSTEM):
        if path.is_symlink() and path.is_dir():  # such as /bin on systems with all programs in /usr
            command += ["--symlink", str(path.readlink()), str(path)]
        else:
            command += ["--ro-bind-try", str(path), str(path)]
    command += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    # A mapping of /dev/zero is memory that is not counted.
    command += ["--dev-bind", "/dev/null", "/dev/zero"]
    for tmpfs in _tmpfs(directory):
        command += ["--size", str(DISK), "--tmpfs", tmpfs]
    command += ["--remount-ro", "/dev"]
    for folder in _readable():
        command += ["--ro-bind", folder, folder]
    if CARRIED.is_dir():  # hidden by an empty folder, also if Python's packages are in /usr
        command += ["--tmpfs", str(CARRIED)]
    for folder in readable:
        command += ["--ro-bind", folder, folder]
    if rules is not None:
        command += ["--seccomp", str(rules)]
    if CARRIED.is_dir():
        command += ["--remount-ro", str(CARRIED)]
    return [*command, "--dir", directory, "--remount-ro", "/", "--chdir", directory]


def _tmpfs(directory: str) -> tuple[str, ...]:
    """Return the folders that ranks can write to."""
    own = () if Path(directory).is_relative_to("/tmp") else (directory,)
    return ("/dev/shm", "/tmp", *own)


def _readable() -> list[str]:
    """Return the folders of Python and its packages, except those in /usr."""
    wanted = {sys.prefix, sys.base_prefix, sys.exec_prefix, str(PACKAGE)}
    if site.ENABLE_USER_SITE:
        wanted.add(site.getusersitepackages())
    # Path.is_dir would raise: a user of a container may have root's home, and must not read it.
    found = filter(os.path.isdir, wanted)
    return sorted(path for path in found if not Path(path).is_relative_to("/usr"))


def _limit(pid: int) -> None:
    """Set the limits of a process (0: this one) to the ranks' limits, unless they are lower."""
    for limit, most in LIMITS.items():
        hard = resource.prlimit(pid, limit)[1]
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(pid, limit, (allowed, allowed))


def _processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _pid_namespace(pid: int) -> str:
    """Return the name of a process's namespace of process ids; "" if it has ended."""
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    return ""


def _usage(pid: int) -> tuple[int, int]:
    """Return the bytes of a process's private memory, and the number of its threads."""
    memory = threads = 0
    with suppress(OSError):  # it has ended
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("RssAnon", "RssShmem", "VmPTE", "VmSwap"):
                memory += int(value.split()[0]) * 2**10
            elif name == "Threads":
                threads = int(value)
    return memory, threads


def _count_open(pid: int) -> int:
    with suppress(OSError):  # it has ended
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return 0
