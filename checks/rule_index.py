"""Write gradsync/review/pages/README.md, the index of the rules of `gradsync review`.

`python -m checks.rule_index` writes it from the rules; a test compares both.
"""

from __future__ import annotations

from gradsync.review.catalogue import PAGES, RULES

INDEX = PAGES / "README.md"


def render() -> str:
    """Return the index: a table with a line for each rule."""
    lines = [
        "# Rules of `gradsync review`",
        "",
        "Each page explains a rule, with a script that the rule reports and the corrected script.",
        "[docs/review.md](../../../docs/review.md) describes the command.",
        "",
        "Rules that find a cost or a possible mistake are off unless you select them, such as with",
        "`--select DDP026`.",
        "",
        "| code | finding | kind | practice |",
        "|---|---|---|---|",
    ]
    lines += [f"| [{r.code}]({r.code}.md) | {r.title} | {r.kind} | {r.topic} |" for r in RULES]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    INDEX.write_text(render(), encoding="utf-8")
