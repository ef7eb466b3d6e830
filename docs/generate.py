"""Write the pages that are made from data and code, with the templates of docs/_templates.

These are one for each diagnosis code and command, and the reference of the public names. The rules
of `gradsync review` have pages of their own already.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import jinja2
import typer.cli

import gradsync
import gradsync.cases
import gradsync.notebook
import gradsync.testing
from gradsync.cli.app import COMMANDS, app, complete
from gradsync.course.catalogue import Course
from gradsync.course.codes import Meaning, meanings
from gradsync.records import FIRST_PHASE
from gradsync.reports.text import slug

PUBLIC = (gradsync, gradsync.testing, gradsync.cases, gradsync.notebook)
MARKUP = re.compile(r"\[/?[a-z ]*\]")  # of rich: [dim]gradsync check[/]
CODES = (
    "A report names a mistake by one of these codes; `gradsync explain CODE` shows the same text."
)
NAMES = "These names are public; everything else may change in any release."


TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("_templates")), autoescape=False
)
TEMPLATES.filters["anchor"] = slug
TEMPLATES.filters["code"] = lambda name: f"`{name.partition('/')[2]}`"
TEMPLATES.globals["FIRST_PHASE"] = FIRST_PHASE


def write_pages(root: Path) -> None:
    """Write the pages to docs/made, which git ignores."""
    course = Course(root)
    made = root / "docs" / "made"
    _write(made, {"exercises": _rendered("exercises", course=course)})
    _write(made / "codes", dict(_codes(course)))
    _write(made / "commands", dict(_commands()))
    _write(made / "reference", dict(_reference()))


def _write(folder: Path, pages: dict[str, str]) -> None:
    """Write the changed pages only, so that Sphinx does not read the others again."""
    folder.mkdir(parents=True, exist_ok=True)
    for page in folder.glob("*.md"):
        if page.stem not in pages:
            page.unlink()
    for name, text in pages.items():
        page = folder / f"{name}.md"
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def _rendered(template: str, **values: object) -> str:
    return TEMPLATES.get_template(f"{template}.md.j2").render(values)


def _codes(course: Course) -> Iterator[tuple[str, str]]:
    known: dict[str, list[Meaning]] = {}
    for meaning in meanings(course):
        known.setdefault(meaning.code, []).append(meaning)
    for code, found in known.items():
        yield code, _rendered("code", code=code, meanings=found)
    causes = {code: found[0].cause for code, found in known.items()}
    yield "index", _rendered("index", title="Diagnosis codes", text=CODES, pages=causes)


def _commands() -> Iterator[tuple[str, str]]:
    for name in COMMANDS:
        command = complete(name)
        context = command.context_class(command, info_name=f"gradsync {name}")
        text = typer.cli.get_docs_for_click(obj=command, ctx=context, name=f"gradsync {name}")
        yield name, _examples_as_code(text)
    pages = {name: place.summary for name, place in COMMANDS.items()}
    yield "index", _rendered("index", title="Commands", text=app.info.help, pages=pages)


def _examples_as_code(text: str) -> str:
    """Turn the lines `[dim]COMMAND[/]   meaning` of a help text into a block of code."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        example = line.startswith("[dim]gradsync")
        if example != inside:
            lines.append("```console" if example else "```")
            inside = example
        lines.append(MARKUP.sub("", line) if example else line)
    return "\n".join(lines)


def _reference() -> Iterator[tuple[str, str]]:
    for module in PUBLIC:
        names = {name: _kind(getattr(module, name)) for name in module.__all__ if name[0] != "_"}
        yield module.__name__, _rendered("reference", module=module, names=names)
    pages = {module.__name__: _summary(module) for module in PUBLIC}
    yield "index", _rendered("index", title="Reference", text=NAMES, pages=pages)


def _kind(value: object) -> str:
    """Return Sphinx's directive for a public name."""
    if isinstance(value, type):
        return "autoclass"
    return "autofunction" if callable(value) else "autodata"


def _summary(module: ModuleType) -> str:
    return (module.__doc__ or "").partition("\n")[0]
