"""The lines that coverage.py counted in all processes of a run."""

from contextlib import closing

import coverage


def counted_lines(folder, source):
    """Return the lines of `source` that ran, by the data files in `folder`."""
    lines = set()
    for file in folder.glob(".coverage.*"):
        with closing(coverage.CoverageData(str(file))) as part:
            part.read()
            lines |= set(part.lines(str(source)) or ())
    return lines
