"""The file from which a training run resumes: which rank writes it, how, and how it is read."""

from gradsync.testing import exercise, raise_mistake
from support.probes.files import files_with_code
from support.probes.training import TIME_TO_END
from support.probes.training_files import probe_code_in_file, probe_failed_write, probe_writing
from support.rules.checkpoints import writes_too
from support.rules.resuming import (
    GUIDE,
    code_run,
    file_harmed,
    file_misused,
    file_not_updated,
)

# For a run in which train raises: it may search for lost ranks.
LIMIT = {"timeout": 20 + TIME_TO_END, "promised": True}


@exercise("phase2/train", points=0.25)
def test_only_rank_0_writes(ranks):
    """Only rank 0 writes the file of `resume_from`, in each epoch."""
    seen = ranks(probe_writing, 2, mistakes=[writes_too(GUIDE), file_misused])

    raise_mistake(file_not_updated(*seen[0]))


@exercise("phase2/train", points=0.25)
def test_a_failed_write_keeps_the_old_file(ranks):
    """The old file stays until the new one is complete, even if the disk is full."""
    [seen] = ranks(probe_failed_write, 1, mistakes=[file_misused], **LIMIT)

    raise_mistake(file_harmed(*seen))


@exercise("phase2/train", points=0.25)
def test_code_in_the_file_is_not_run(ranks):
    """Code in the file of `resume_from` is not run."""
    files = files_with_code({"model": {}, "epoch": 1})
    limit = {"timeout": len(files) * LIMIT["timeout"], "promised": True}
    limit["mistakes"] = [file_misused]
    [seen] = ranks(probe_code_in_file, 1, files=files, **limit)

    raise_mistake(code_run(*seen))
