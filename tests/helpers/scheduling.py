"""Which tests run one after the other where several processes share the work.

(`--dist loadgroup` has marks for that, which have no effect with pytest 9.2.)
"""

from xdist.scheduler import LoadScopeScheduling

# Tests that share what takes long to make (a graded class, a kernel, a browser), or use all cores.
TOGETHER = {
    "tests/grader/cli/test_commands.py",
    "tests/grader/exporting/test_export.py",
    "tests/grader/notebook/test_answer.py",
    "tests/grader/nbgrader",
    "tests/course/notebooks/test_jupyterlab.py",
    "tests/course/notebooks/test_ranks_cells.py",
    "tests/course/notebooks/test_self_study.py",
}


class Scheduling(LoadScopeScheduling):
    """Gives the next test to a process that is free, but all tests of `TOGETHER` to one."""

    def _split_scope(self, nodeid: str) -> str:
        """Return a name for what one process runs as a whole."""
        return next((name for name in TOGETHER if nodeid.startswith(name)), nodeid)
