"""nbgrader's settings for this course. Cells of submissions are graded but never run.

Keep this file beside `source/` and `gradebook.db`, also in a copy of the folder.
"""

from pathlib import Path

c = get_config()  # noqa: F821 - nbgrader defines it

c.CourseDirectory.root = str(Path(__file__).resolve().parent)
c.CourseDirectory.course_id = "gradsync"

# nbgrader's default steps, except that solutions become the stubs of phase1/ and phase2/.
c.GenerateAssignment.preprocessors = [
    "nbgrader.preprocessors.IncludeHeaderFooter",
    "nbgrader.preprocessors.InstantiateTests",
    "nbgrader.preprocessors.LockCells",
    "gradsync.nbgrader.source.stubs.TemplateStubs",  # instead of ClearSolutions
    "nbgrader.preprocessors.ClearOutput",
    "nbgrader.preprocessors.CheckCellMetadata",
    "nbgrader.preprocessors.ComputeChecksums",
    "nbgrader.preprocessors.SaveCells",
    "nbgrader.preprocessors.ClearHiddenTests",
    "nbgrader.preprocessors.ClearMarkScheme",
    "nbgrader.preprocessors.ComputeChecksums",
    "nbgrader.preprocessors.CheckCellMetadata",
]

# A learner's code runs only on sandboxed ranks, and their markdown is never shown as HTML.
c.Autograde.sanitize_preprocessors = [
    "gradsync.nbgrader.autograde.RebuildNotebook",
    "nbgrader.preprocessors.OverwriteKernelspec",
    "nbgrader.preprocessors.OverwriteCells",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.Autograde.autograde_preprocessors = [
    "gradsync.nbgrader.autograde.GradeSubmission",  # instead of nbgrader's Execute
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]

# For `nbgrader validate`, which runs your own notebook: the tests of a cell take seconds.
c.ExecutePreprocessor.timeout = 300
