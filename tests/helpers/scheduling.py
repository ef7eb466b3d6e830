"""Run some tests one after the other, in the same process, if several processes share the work.

(`--dist loadgroup` has marks for this, but they have no effect with pytest 9.2.)
"""

from xdist.scheduler import LoadScopeScheduling

# Tests that share something slow to create (a graded class, a kernel, a browser) or use all cores.
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
    """Gives the next test to a free process, but all tests of an entry of `TOGETHER` to one."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the name of the group of tests that one process runs."""
        return next((name for name in TOGETHER if nodeid.startswith(name)), nodeid)
