"""What a learner handed in, read by name from a folder or an archive.

`reading` is the way in: it holds the entries of `folders` and `archives` (tars have a reader of
their own, `tars`) against the rules for names in `contents`, and what they hold against `sources`.
"""

from gradsync.submission.reading import (
    Submission,
    SubmissionError,
    find_submissions,
    read_submission,
    submission_name,
)

__all__ = [
    "Submission",
    "SubmissionError",
    "find_submissions",
    "read_submission",
    "submission_name",
]
