"""Trusted: what a rank that runs other people's code may see and use.

Two sandboxes of bubblewrap's, one in the other. The outer one holds the warm process as long as it
lives. It hides nothing, but makes it, for root and for anybody, the root of a user namespace: it
may then make namespaces for others and enter them, and its /proc has nothing but its own family.

The inner one is made anew for each run, in milliseconds. Its ranks, forked from the warm process,
enter it before they read a byte of a learner's: Python and the system, read-only; an empty home
of limited size; a loopback of its own; no other process; no capability. What all ranks of a run
take together the warm process counts; where it could join a control group, the kernel limits it.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import site
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from gradsync.errors import SandboxError
from gradsync.ranks import namespaces, seccomp
from gradsync.ranks.cgroups import ControlGroup, Refusals
from gradsync.ranks.events import MAX_RANKS
from gradsync.workplace import own_folder

GIB, MIB = 2**30, 2**20
MEMORY = 2 * GIB  # of all ranks of a run and what they start; two runs go on at a time
TASKS = 256  # processes and threads of theirs
OWN_TASKS = 8  # at most, that the warm process starts for them
DISK = 512 * MIB  # of a run's own /tmp, where its working folder is; as much of shared memory
FILES = 16_384  # in each of these: an empty one takes memory, too
FILE_SIZE = 256 * MIB
# Of a process, and so about how many of all ranks can be on their way through sockets. The kernel
# counts those of a user together, and refuses to send more to whoever may open 1024, as is usual.
OPEN_FILES = 512
ALL_OPEN_FILES = 8192  # a socket may hold 200 KB that nobody has read
CPU_SECONDS = 600  # of a process
SIGNALS = 1024  # that wait, and timers: the user's own processes have no more for all together
LIMITS = {
    resource.RLIMIT_FSIZE: FILE_SIZE,
    resource.RLIMIT_NOFILE: OPEN_FILES,
    resource.RLIMIT_CPU: CPU_SECONDS,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_SIGPENDING: SIGNALS,
}
NOBODY = "1000"  # who the ranks think they are
SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/sbin", "/etc/ld.so.cache", "/etc/localtime")
PACKAGE = Path(__file__).parents[1]
HIDDEN = ("diagnose", "standins")  # parts of it that know what an exercise comes to
INSTALL = "install bubblewrap (`apt install bubblewrap`, `dnf install bubblewrap`)"
ALL_OF_A_RUN = (
    namespaces.NEW_MOUNTS
    | namespaces.NEW_CGROUP
    | namespaces.NEW_UTS
    | namespaces.NEW_IPC
    | namespaces.NEW_NET
)


class Sandbox:
    """The sandbox of one run, in the warm process's hands."""

    def __init__(
        self, directory: str, readable: Sequence[str], group: ControlGroup | None = None
    ) -> None:
        """Begin to make it; the ranks' `directory` is new and theirs, `readable` folders are not.

        It is whole when its first process runs, `cat`, which then has a byte for each rank.
        """
        info, told = os.pipe()
        self._ready, echo = os.pipe()
        keys, self._keys = os.pipe()
        rules, given = os.pipe()
        self._rules = seccomp.program()
        os.write(given, self._rules)
        os.close(given)
        self._bubblewrap = subprocess.Popen(
            [*_inner(directory, readable, rules), "--info-fd", str(told), "--", "cat"],
            pass_fds=[told, rules],
            stdin=keys,
            stdout=echo,
        )
        for end in (told, echo, keys, rules):
            os.close(end)
        os.write(self._keys, bytes(MAX_RANKS))
        with os.fdopen(info) as lines:
            self._first = int(json.load(lines)["child-pid"])
        _limit(self._first)
        self._process = os.pidfd_open(self._first)
        self._outside = os.pidfd_open(os.getpid())
        self._others = set(_processes())  # that are there without any rank
        self._shared, _ = _usage(os.getpid())  # what each rank is born with, and need not pay for
        self._directory = directory
        self.runs_low = False
        self._group = group
        self._refused = self._refusals()
        namespaces.enter(self._process, namespaces.NEW_PID)  # for ranks, forked from now on

    def enter(self) -> None:
        """Go in, on a freshly forked rank, and leave every privilege behind."""
        if not os.read(self._ready, 1):
            raise SandboxError("bubblewrap could not make a sandbox")
        Path("/proc/self/oom_score_adj").write_text("1000")  # where memory lacks, it goes first
        namespaces.enter(self._process, ALL_OF_A_RUN)
        for tmpfs in _tmpfs(self._directory):
            namespaces.limit_files(tmpfs, FILES)
        namespaces.enter(self._process, namespaces.NEW_USER)
        namespaces.drop_privileges()
        _limit(0)
        os.chdir(self._directory)
        namespaces.refuse_calls(self._rules)

    def excess(self, members: Iterable[int]) -> tuple[str, str] | None:
        """Return the diagnosis of a run whose members take too much, and the words for it.

        From then on `runs_low` tells whether they have taken most of the memory.
        """
        memory = tasks = files = 0
        for pid in members:
            used, threads = _usage(pid)
            memory += max(0, used - self._shared)
            tasks += threads
            files += _count_open(pid)
        refused = self._refusals()
        self.runs_low = memory > MEMORY / 2
        if memory > MEMORY or refused.memory > self._refused.memory:
            return "out-of-memory", f"took more than {MEMORY // GIB} GiB of memory together"
        if tasks > TASKS or refused.tasks > self._refused.tasks:
            return "rank-crashed", f"started more than {TASKS} processes and threads"
        if files > ALL_OPEN_FILES:
            return "rank-crashed", f"opened more than {ALL_OPEN_FILES:,} files and sockets together"
        return None

    def members(self) -> set[int]:
        """Return the processes in it: ranks, and what they started."""
        return set(_processes()) - self._others

    def _refusals(self) -> Refusals:
        return self._group.refusals() if self._group else Refusals()

    def end(self) -> None:
        """End every process in it: with the first one of its namespace go all."""
        with suppress(ProcessLookupError):
            os.kill(self._first, 9)

    def close(self) -> None:
        """Forget it, once all in it have ended and been reaped."""
        namespaces.enter(self._outside, namespaces.NEW_PID)
        self._bubblewrap.returncode = 0  # reaped with the others
        for end in (self._ready, self._keys, self._process, self._outside):
            os.close(end)


def outer(command: Sequence[str]) -> list[str]:
    """Return the command that runs the warm process's as root of its own namespaces."""
    rights = ("--unshare-user", "--unshare-pid", "--uid", "0", "--gid", "0", "--cap-add", "ALL")
    return ["bwrap", *rights, "--dev-bind", "/", "/", "--", *command]


def check(secret: Path | None = None) -> None:
    """Try whether ranks can be kept apart here, and the folder `secret` out of their sight.

    Raises:
        SandboxError: they can't; it says why, and what to do.
    """
    if sys.platform != "linux":
        raise SandboxError("a sandbox needs Linux")
    if shutil.which("bwrap") is None:
        raise SandboxError(f"bubblewrap (`bwrap`) is not installed: {INSTALL}")
    for path in map(Path, ["/usr", *_readable()]):
        if secret is not None and secret.resolve().is_relative_to(path.resolve()):
            raise SandboxError(
                f"{secret} lies in {path}, which ranks have to read: move the course, or install "
                "Python's environment elsewhere"
            )
    with own_folder() as folder:
        tried = subprocess.run(
            outer([*_inner(str(folder)), "--", "true"]), capture_output=True, text=True, check=False
        )
    if tried.returncode != 0:
        raise SandboxError(
            f"bubblewrap may not make namespaces here ({tried.stderr.strip()}): in a container, "
            "run it with --security-opt seccomp=unconfined; on Ubuntu, see "
            "kernel.apparmor_restrict_unprivileged_userns"
        )


def _inner(directory: str, readable: Sequence[str] = (), rules: int | None = None) -> list[str]:
    """Return the start of the command that makes a run's sandbox; a program's is still to come."""
    apart = ("user", "pid", "ipc", "net", "uts", "cgroup")
    command = ["bwrap", *(f"--unshare-{kind}" for kind in apart), "--disable-userns"]
    command += ["--uid", NOBODY, "--gid", NOBODY, "--hostname", "rank", "--clearenv"]
    command += ["--die-with-parent", "--new-session", "--as-pid-1"]
    for path in map(Path, SYSTEM):
        if path.is_symlink() and path.is_dir():  # as /bin is, where all is in /usr
            command += ["--symlink", str(path.readlink()), str(path)]
        else:
            command += ["--ro-bind-try", str(path), str(path)]
    command += ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]
    command += ["--dev-bind", "/dev/null", "/dev/zero"]  # it gives memory that nobody can count
    for tmpfs in _tmpfs(directory):
        command += ["--size", str(DISK), "--tmpfs", tmpfs]
    command += ["--remount-ro", "/dev"]
    for folder in _readable():
        command += ["--ro-bind", folder, folder]
    for part in HIDDEN:
        command += ["--size", "4096", "--tmpfs", str(PACKAGE / part)]
    for folder in readable:
        command += ["--ro-bind", folder, folder]
    for part in HIDDEN:
        command += ["--remount-ro", str(PACKAGE / part)]
    if rules is not None:
        command += ["--seccomp", str(rules)]
    return [*command, "--dir", directory, "--remount-ro", "/", "--chdir", directory]


def _tmpfs(directory: str) -> tuple[str, ...]:
    """Return the places that ranks can write to, by the one that is their own."""
    own = () if Path(directory).is_relative_to("/tmp") else (directory,)
    return ("/dev/shm", "/tmp", *own)


def _readable() -> list[str]:
    """Return the folders of Python and of what is installed for it, but for the system's."""
    wanted = {sys.prefix, sys.base_prefix, sys.exec_prefix, str(PACKAGE)}
    if site.ENABLE_USER_SITE:
        wanted.add(site.getusersitepackages())
    return sorted(p for p in wanted if Path(p).is_dir() and not Path(p).is_relative_to("/usr"))


def _limit(pid: int) -> None:
    """Set a process's limits, or this one's, to what ranks may use, unless they are lower."""
    for limit, most in LIMITS.items():
        hard = resource.prlimit(pid, limit)[1]
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.prlimit(pid, limit, (allowed, allowed))


def _processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _usage(pid: int) -> tuple[int, int]:
    """Return the bytes of memory that are a process's own, and the number of its threads."""
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
