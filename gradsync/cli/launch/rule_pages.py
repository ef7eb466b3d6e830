"""The page of a rule of `gradsync review`, shown in the terminal."""

from __future__ import annotations

import sys

from rich.console import Console

from gradsync.errors import UnusableInput

EVERY = "all"


def show_page(code: str) -> None:
    """Print the page of a rule, or for "all" the titles of all rules.

    Raises:
        UnusableInput: if there is no rule with this code.
    """
    from rich.markdown import Markdown  # imports many modules that no other command needs

    from gradsync.review.catalogue import RULES, page

    titles = {rule.code: rule.title for rule in RULES}
    wanted = code.strip().upper()
    if wanted == EVERY.upper():
        print("\n".join(f"{code} {title}" for code, title in titles.items()))
    elif wanted not in titles:
        raise UnusableInput(
            f"--explain {code}: there is no such rule. `gradsync review --explain {EVERY}` lists "
            "the rules."
        )
    elif sys.stdout.isatty():
        Console().print(Markdown(page(wanted)))
    else:
        print(page(wanted), end="")
