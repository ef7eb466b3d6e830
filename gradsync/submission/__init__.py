"""Read a learner's submission, by file name, from a folder or an archive.

`reading` is the entry point. It checks the names of the entries that `folders` and `archives`
yield against the rules in `contents`, and their content with `sources`. `tars` reads .tar.gz files.
"""

from gradsync.submission.reading import (
    Submission,
    SubmissionError,
    find_submissions,
    is_archive,
    read_submission,
    submission_name,
)

__all__ = [
    "Submission",
    "SubmissionError",
    "find_submissions",
    "is_archive",
    "read_submission",
    "submission_name",
]
