"""All rules, and the selection of some of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradsync.errors import UnusableInput
from gradsync.review.findings import Rule
from gradsync.review.rules import (
    collectives,
    devices,
    files,
    gradients,
    launching,
    loaders,
    metrics,
    models,
    samplers,
    seeds,
)

_MODULES = (
    loaders, samplers, files, collectives, launching, devices, models, gradients, metrics, seeds,
)  # fmt: skip
RULES: tuple[Rule, ...] = tuple(
    sorted(
        (rule for module in _MODULES for rule in vars(module).values() if isinstance(rule, Rule)),
        key=lambda rule: rule.code,
    )
)
DEFAULT: tuple[Rule, ...] = tuple(rule for rule in RULES if rule.kind == "mistake")
PAGES = Path(__file__).parent / "pages"


def page(code: str) -> str:
    """Return the page of a rule, in Markdown, with wrong and right code."""
    return (PAGES / f"{code}.md").read_text(encoding="utf-8")


def selected(codes: str | None) -> Sequence[Rule]:
    """Return the rules of a list such as "DDP004,DDP01"; those that are on by default for None.

    Raises:
        UnusableInput: if no rule's code begins with one of the listed codes.
    """
    if codes is None:
        return DEFAULT
    wanted = [code.strip().upper() for code in codes.split(",") if code.strip()]
    for code in wanted:
        if not any(rule.code.startswith(code) for rule in RULES):
            raise UnusableInput(
                f"--select {code}: there is no such rule. The codes are {RULES[0].code} to "
                f"{RULES[-1].code}; `gradsync review --explain all` lists them."
            )
    if not wanted:
        raise UnusableInput("--select needs codes, such as --select DDP004,DDP005.")
    return [rule for rule in RULES if rule.code.startswith(tuple(wanted))]
