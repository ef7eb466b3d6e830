"""The texts that people read, and the samples in them."""

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "phase*/GUIDELINES.md", "cluster/README.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)
FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.M | re.S)


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def samples(page, *kinds):
    """Return the samples of a text in these languages, in order."""
    found = FENCE.findall(text_of(page))
    return [textwrap.dedent(body) for _, kind, body in found if kind in kinds]


def files_of(page):
    """Return the files that a page shows, by their paths, which are comments at their beginning."""
    shown = samples(page, "python", "toml", "yaml")
    named = [(re.match(r"# (\S+\.\w+)\n", sample), sample) for sample in shown]
    return {start[1]: sample for start, sample in named if start}
