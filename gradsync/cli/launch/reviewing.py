"""`gradsync review`: read training scripts, and report the pitfalls of distributed training."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape

from gradsync.cli.shared import imports_of, say
from gradsync.errors import UnusableInput
from gradsync.review import review, sarif
from gradsync.review.catalogue import RULES, page, selected
from gradsync.review.checklist import checklist
from gradsync.review.findings import Rule
from gradsync.review.reviewing import Review
from gradsync.text import counted

FOUND = 1
UNUSABLE = 2
EVERY = "all"


class Format(str, Enum):
    """The format of the findings."""

    text = "text"
    sarif = "sarif"


def review_command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE...", help="Training scripts, reviewed together."),
    ] = None,
    format: Annotated[
        Format, typer.Option("--format", help="Lines of text, or SARIF 2.1.0.")
    ] = Format.text,
    fix: Annotated[
        bool, typer.Option("--fix", help="Apply the safe fixes to the files, and show them.")
    ] = False,
    select: Annotated[
        str | None,
        typer.Option(metavar="CODES", help="Only these rules, such as DDP004,DDP005."),
    ] = None,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Print only the number of findings of each rule.")
    ] = False,
    explain: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="Show the page of a rule; `all` lists the rules."),
    ] = None,
) -> None:
    """Find the pitfalls of distributed training in any PyTorch script, without running it.

    A folder stands for its Python files. Exits with status 1 if something was found, with 2 if a
    named file can't be read. Costs and possible mistakes are found only with `--select`. The
    comment `# gradsync: ignore[DDP004]` on a line suppresses this finding there.

    [dim]gradsync review train.py[/]             all rules
    [dim]gradsync review --explain DDP005[/]     why a rule matters, with wrong and right code
    """
    if explain is not None:
        _show_page(explain)
        return
    if not files:
        raise UnusableInput("Name the scripts to review, as in `gradsync review train.py`.")
    rules = selected(select)
    paths = _python_files(files)
    if fix:
        _fix(paths, rules)
    found = review(paths, rules, unsure=select is not None)
    if format is Format.sarif:
        print(sarif.render(found, rules, version("gradsync")))
    else:
        _print_text(found, rules, statistics=statistics)
    raise typer.Exit(_end(found, files, fix=fix))


def _end(found: Review, named: Sequence[Path], *, fix: bool) -> int:
    """Say which findings were not fixed and which files can't be read; return the exit status."""
    if fix and found.findings:
        count = counted(len(found.findings), "finding")
        say(f"{count} must be fixed by hand, because the right change depends on your intention.")
    for _, reason in found.unreadable:
        say(f"not reviewed: {reason}")
    if any(path in named for path, _ in found.unreadable):
        return UNUSABLE
    return FOUND if found.findings else 0


def _python_files(given: Sequence[Path]) -> list[Path]:
    """Return the files, and for a folder the Python files in it.

    Raises:
        UnusableInput: if there is no such file, or a folder has no Python files.
    """
    found: dict[Path, None] = {}
    for path in given:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*.py") if not _is_hidden(p.relative_to(path)))
            if not inside:
                raise UnusableInput(f"{path} has no Python files. Name the scripts to review.")
            found.update(dict.fromkeys(inside))
        elif path.exists():
            found[path] = None
        else:
            raise UnusableInput(f"{path} does not exist. Name the scripts to review.")
    return list(found)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") or part == "site-packages" for part in path.parts)


def _fix(paths: Sequence[Path], rules: Sequence[Rule]) -> None:
    with imports_of("review"):
        from gradsync.review.fixing import fix
    console = Console(stderr=True, highlight=False)
    for path in paths:
        change = fix(path, rules)
        if change:
            console.print(f"[bold]changed {escape(str(path))}[/]")
            for line in change.splitlines():
                style = {"+": "green", "-": "red"}.get(line[:1], "dim")
                console.print(f"[{style}]{escape(line)}[/]", soft_wrap=True)


def _print_text(found: Review, rules: Sequence[Rule], *, statistics: bool) -> None:
    """Print the statistics, or a line for each finding to stdout and a summary to stderr."""
    if statistics:
        print("\n".join(_statistics(found, rules)))
        return
    console = Console(highlight=False, soft_wrap=True)
    for f in found.findings:
        place = f"{f.path}:{f.line}:{f.column}"
        console.print(f"{escape(place)} [bold red]{f.code}[/] {escape(f.text)}")
    _print_summary(found, rules)


def _print_summary(found: Review, rules: Sequence[Rule]) -> None:
    """Print the checklist to stderr, and for several files the number of findings of each rule."""
    summary = Console(stderr=True, highlight=False)
    if not found.distributed:
        summary.print("No distributed training was found in these files.")
        return
    if len(found.files) > 1:
        for text in _statistics(found, rules):
            summary.print(escape(text), soft_wrap=True)
    lines = checklist(found.findings, found.followed, rules)
    for line in lines:
        if line.codes:
            summary.print(f"[red]✗[/] {line.topic}  [red]{', '.join(line.codes)}[/]")
    followed = [line.topic for line in lines if line.state == "followed"]
    unchecked = [line.topic for line in lines if line.state == "not checked"]
    if followed:
        summary.print(f"[green]✓[/] followed: {'; '.join(followed)}")
    if unchecked:
        summary.print(f"[dim]- not checked: {'; '.join(unchecked)}[/]")
    if found.findings:
        code = found.findings[0].code
        summary.print(f"[dim]gradsync review --explain {code} shows wrong and right code.[/]")


def _statistics(found: Review, rules: Sequence[Rule]) -> list[str]:
    """Return a line for each rule with findings, the most frequent one first."""
    titles = {rule.code: rule.title for rule in rules}
    counts = Counter(finding.code for finding in found.findings)
    lines = [f"{count:5} {code} {titles[code]}" for code, count in counts.most_common()]
    places = len({finding.path for finding in found.findings})
    total = f"{counted(len(found.findings), 'finding')} in {counted(places, 'file')}"
    return [*lines, f"{total}; {counted(len(found.files), 'file')} reviewed"]


def _show_page(code: str) -> None:
    """Print the page of a rule, or for "all" the titles of all rules.

    Raises:
        UnusableInput: if there is no rule with this code.
    """
    titles = {
        rule.code: rule.title + f" ({rule.kind}: off by default)" * (rule.kind != "mistake")
        for rule in RULES
    }
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
