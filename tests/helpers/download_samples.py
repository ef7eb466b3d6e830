"""Parts of downloads: Gradescope's list of submitters, and clones of repositories."""

import os
import subprocess

from small_course import RIGHT, write_submission

METADATA = """---
submission_101:
  :submitters:
  - :name: Ada Lovelace
    :sid: '17'
    :email: ada@x.org
  :created_at: 2026-10-30 20:53:49.186494000 Z
  :score: 3.0
  :results:
    tests: []
submission_102:
  :submitters:
  - :name: Bob
    :sid: '18'
    :email: bob@x.org
  - :name: Cleo
    :sid: '19'
    :email: cleo@x.org
  :created_at: 2026-10-31 08:00:00.000000000 Z
"""


def git(folder, *arguments):
    moment = "2026-10-30T12:00:00+02:00"
    person = {
        f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    subprocess.run(
        ["git", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        env={**os.environ, **person, "GIT_COMMITTER_DATE": moment, "GIT_AUTHOR_DATE": moment},
    )


def clone(folder, source=RIGHT):
    write_submission(folder / "phase1", source)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "x")
    return folder
