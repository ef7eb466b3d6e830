"""Write the index of the rules of `gradsync review`, and what was measured.

`python -m checks.rule_index` writes gradsync/review/pages/README.md, the last paragraph of each
page, and the table in docs/review.md, from the rules and from the data of `review_corpus.py`; tests
compare them.
"""

from __future__ import annotations

import re
from pathlib import Path

from checks import review_corpus
from gradsync.review.catalogue import PAGES, RULES
from gradsync.review.findings import Rule

INDEX = PAGES / "README.md"
DOCS = Path(__file__).parents[1] / "docs" / "review.md"
TABLE = re.compile(r"\| run \| repositories .*?\n\n", re.S)
MEASURED = "\n## Measured\n\n"
OF_RESULTS = (  # the rules about wrong results and hangs
    "DDP001", "DDP002", "DDP005", "DDP007", "DDP015", "DDP016", "DDP017", "DDP018", "DDP020",
    "DDP024", "DDP027", "DDP030", "DDP032", "DDP034", "DDP035", "DDP038", "DDP040", "DDP042",
    "DDP043", "DDP044", "DDP045", "DDP046", "DDP048",
)  # fmt: skip


def render() -> str:
    """Return the index: a table with a line for each rule."""
    lines = [
        "# Rules of `gradsync review`",
        "",
        "Each page explains a rule, with a script that the rule reports and the corrected script.",
        "[docs/review.md](../../../docs/review.md) describes the command.",
        "",
        "Rules that find a cost or a possible mistake are off unless you select them, such as with",
        "`--select DDP026`. *Measured* says how many of a rule's findings were true in public",
        "repositories for which it had not been corrected.",
        "",
        "| code | finding | kind | practice | measured |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| [{r.code}]({r.code}.md) | {r.title} | {r.kind} | {r.topic} | {_ratio(r)} |"
        for r in RULES
    ]
    return "\n".join(lines) + "\n"


def _ratio(rule: Rule) -> str:
    true, judged = review_corpus.by_rule().get(rule.code, (0, 0))
    return f"{true} of {judged}" if judged else "-"


def page(rule: Rule) -> str:
    """Return a rule's page with what was measured at its end."""
    text = (PAGES / f"{rule.code}.md").read_text(encoding="utf-8").partition(MEASURED)[0]
    true, judged = review_corpus.by_rule().get(rule.code, (0, 0))
    measured = (
        "The rule reported nothing in the public repositories on which the rules were measured."
    )
    if judged:
        measured = (
            "In public repositories for which the rule had not been corrected, "
            f"{true} of {judged} findings were true."
        )
    if rule.kind != "mistake":
        measured += f"\nThis rule finds a {rule.kind} and is off unless selected."
    return f"{text}{MEASURED}{measured}\n"


def table() -> str:
    """Return the table of docs/review.md: for each run, how many findings were true."""
    lines = [
        "| run | repositories | findings | true | debatable | false | true, of results and hangs |",
        "|---|---|---|---|---|---|---|",
    ]
    codes = [rule.code for rule in RULES]
    results = [counts for _, _, counts in review_corpus.by_run(OF_RESULTS)]
    for (run, size, counts), about in zip(review_corpus.by_run(codes), results, strict=True):
        judged = sum(counts[verdict] for verdict in review_corpus.VERDICTS)
        part = sum(about[verdict] for verdict in review_corpus.VERDICTS)
        lines.append(
            f"| {run} | {size} | {judged} | {counts['true']} ({counts['true'] / judged:.0%}) | "
            f"{counts['debatable']} | {counts['false']} | {about['true']} of {part} |"
        )
    return "\n".join(lines) + "\n\n"


if __name__ == "__main__":
    INDEX.write_text(render(), encoding="utf-8")
    for rule in RULES:
        (PAGES / f"{rule.code}.md").write_text(page(rule), encoding="utf-8")
    DOCS.write_text(
        TABLE.sub(lambda _: table(), DOCS.read_text(encoding="utf-8")), encoding="utf-8"
    )
