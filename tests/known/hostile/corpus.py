"""The corpus of attacks that run in hostile submissions, read from `attacks/*.toml`.

An attack is a submission, the untouched templates or the correct solutions, with some additional
code in the file that contains one exercise. It is graded by one test of that exercise.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from gradsync.course.known_submissions import reference, untouched
from gradsync.submission import Submission

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

IMPORTS = "import re\nimport time\n"  # the solutions have these imports, the templates do not
FOLDER = Path(__file__).parent / "attacks"
TESTS = {
    "phase1/average_gradients": "ends_with_the_mean[2]",
    "phase1/read_rank_info": "torchrun_variables_have_priority",
    "phase2/ring_all_reduce": "sends_more_than_its_part",
    "phase2/shard_without_padding": "empty_shard",
}


@dataclass(frozen=True)
class Attack:
    name: str
    group: str  # the name of its file
    tries: str  # a description
    code: str
    ends: str  # the expected status of its test: "failed", or "failed or crashed"
    says: str = ""  # a part of the message to the learner
    exercise: str = "phase1/average_gradients"
    on: str = "untouched"  # or "reference": it is added to a correct answer
    at: str = "end"  # of the file, or "top": in its first lines
    waits: bool = False  # whether only the time limit ends it
    encoding: str = "utf-8"  # of its file
    many: str = ""  # text that its source repeats `times` times, followed by a 1
    times: int = 0

    @property
    def test(self):
        """Return a part of the name of the only test that grades it."""
        return TESTS[self.exercise]

    def submission(self, course, **known):
        """Return the submission; the names in `known` are defined in it as constants."""
        files = dict((reference if self.on == "reference" else untouched)(course).files)
        constants = "".join(f"{name} = {value!r}\n" for name, value in known.items())
        path = f"{self.exercise.partition('/')[0]}/{course.find(self.exercise).file}"
        source = files[path].decode()
        if self.at == "top":
            source = self.code + source
        else:
            source += f"\n\n{IMPORTS}{constants}\n{self.code}{self.many * self.times}1\n"
        return Submission(self.name, {**files, path: source.encode(self.encoding)})


def read_attacks():
    """Return all attacks, sorted by group, in the order of each file."""
    return [
        Attack(group=path.stem, **row)
        for path in sorted(FOLDER.glob("*.toml"))
        for row in tomllib.loads(path.read_text(encoding="utf-8"))["attack"]
    ]
