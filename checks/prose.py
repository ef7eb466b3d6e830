"""`make lint`: find phrases that are not plain English, and print a replacement for each.

The list contains phrases that were once used here and are hard to understand. A phrase is matched
over line breaks, comment signs and quotes, in every text file of the repository.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUFFIXES = {".md", ".py", ".toml", ".j2", ".yml", ".yaml", ""}
NOT_OURS = ("checks/prose.py", "constraints.txt", "tests/known/right/")
PHRASES = {  # a regular expression: its replacement
    r"mistakes? to mend|mends? the mistake": "to fix",
    r"an ear for": "if the sampler has `set_epoch`",
    r"nothing learns from": "the model is not changed",
    r"for what is no\b|\bwhat is no (integer|number|tensor|int|float|list|dict)": "not an integer",
    r"the (\w+ )?ranks of now": "the current ranks",
    r"make the next pass that of": "set the epoch of the next pass",
    r"who has nothing to": "a rank without a gradient must ...",
    r"they have already returned": "ranks 1 and 2 returned without calling ...",
    r"(takes|of) steps of another length": "a different step size",
    r"do not do what they do": "behave as in training",
    r"holds, as it says it": "use the values exactly as given",
    r"hung up on (you|it|them|us)": "closed the connection",
    r"lost somebody": "lost the connection to a rank",
    r"it must hold that": "must satisfy",
    r"another patience": "the timeout is ignored",
    r"right in the main": "all visible checks pass",
    r"forget its children": "ignores SIGCHLD",
    r"so long an id is": "keeps handles alive so that ids are not reused",
    r"which is last is luck|is a matter of luck": "the outcome is a race",
    r"comes? to no good": "it blocks or fails",
    r"what all that is drawn": "seed of all random inputs",
    r"ask for an end": "request shutdown",
    r"that is whole means": "it is written last: if it exists, the grade is complete",
    r"not (that|those) of above": "on another machine",
    r"has (no|an?|another) device of its own": "each rank gets its own device",
    r"in vain": "without effect, or: for a rank that never comes",
    r"somebody else's": "another process's",
}
_JOINT = r"(?:\s|[#\"'*>|]|\bf(?=\"))+"  # the characters between two words of a sentence


def findings(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, the phrase and its replacement, for each listed phrase in `text`."""
    for pattern, instead in PHRASES.items():
        words = re.compile(pattern.replace(" ", _JOINT), re.IGNORECASE)
        for found in words.finditer(text):
            yield text.count("\n", 0, found.start()) + 1, " ".join(found.group().split()), instead


def main() -> int:
    """Print each finding with its file and line; return 1 if there are any, otherwise 0."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    count = 0
    for name in listed:
        path = ROOT / name
        if path.suffix in SUFFIXES and not name.startswith(NOT_OURS) and path.is_file():
            for line, phrase, instead in findings(path.read_text(encoding="utf-8")):
                print(f"{name}:{line}: “{phrase}” is not plain English; write: {instead}")
                count += 1
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
