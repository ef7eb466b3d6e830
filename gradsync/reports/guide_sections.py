"""Render sections of the course's guides, for the pages that refer to them.

A page is often read away from the course: in the staff's folder of grades, or as an attachment of
an e-mail. A link to the guide's file would not work there, so the page has a copy of the section.
"""

from __future__ import annotations

import base64
import functools
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from gradsync.reports.text import slug

TOP = 3  # level of a section's heading on the page: below "From the guide"
_TYPES = {".svg": "svg+xml", ".png": "png", ".jpg": "jpeg", ".gif": "gif", ".webp": "webp"}
_SCROLLING = '<div class="scroll" tabindex="0" role="group" aria-label="Table in the guide">'


@dataclass(frozen=True, slots=True)
class GuideText:
    """A guide of the course, as Markdown."""

    path: str  # "phase1/GUIDELINES.md"
    markdown: str
    pictures: Mapping[str, bytes] = field(default_factory=dict)  # by their path in the Markdown


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a guide, as HTML."""

    anchor: str  # "guide-phase1-gradient-aggregation", the id of its heading in a page
    path: str  # of the guide
    heading: str
    body: Markup

    @property
    def href(self) -> str:
        """The link to it within the page."""
        return f"#{self.anchor}"


@dataclass(frozen=True, slots=True)
class _Place:
    """A section's position in the tokens of its guide."""

    guide: GuideText
    tokens: Sequence[Token]  # without the heading
    heading: str
    level: int  # of the heading in the guide

    @property
    def anchor(self) -> str:
        return f"guide-{posixpath.dirname(self.guide.path) or 'course'}-{slug(self.heading)}"


def sections(
    guides: Sequence[GuideText], wanted: Collection[tuple[str, str]]
) -> dict[tuple[str, str], Section]:
    """Return the wanted sections that exist, in the order of the guides.

    Args:
        guides: all guides of the course.
        wanted: pairs of a guide's path and a heading. If this guide lacks the heading, the section
            may come from another guide: a section on deadlocks serves all phases.
    """
    places = [place for guide in guides for place in _places(guide)]
    chosen: dict[tuple[str, str], _Place] = {}
    for path, heading in wanted:
        found = [place for place in places if slug(place.heading) == slug(heading)]
        found.sort(key=lambda place: place.guide.path != path)
        if found:
            chosen[path, heading] = found[0]
    anchors = {
        f"{place.guide.path}#{slug(place.heading)}": place.anchor for place in chosen.values()
    }
    order = [place.anchor for place in places]
    pairs = sorted(chosen.items(), key=lambda pair: order.index(pair[1].anchor))
    return {
        key: Section(place.anchor, place.guide.path, place.heading, _rendered(place, anchors))
        for key, place in pairs
    }


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.add_render_rule("table_open", lambda *_: f"{_SCROLLING}<table>\n")
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return parser


@functools.lru_cache(maxsize=16)
def _parsed(markdown: str) -> tuple[Token, ...]:
    return tuple(_parser().parse(markdown))  # 50 ms for a guide, and each report needs it


def _places(guide: GuideText) -> Iterator[_Place]:
    tokens = _parsed(guide.markdown)
    starts = [i for i, token in enumerate(tokens) if token.type == "heading_open"]
    for start in starts:
        level = int(tokens[start].tag[1:])
        ends = (i for i in starts if i > start and int(tokens[i].tag[1:]) <= level)
        end = next(ends, len(tokens))
        heading = tokens[start + 1].content.replace("`", "")
        yield _Place(guide, tokens[start + 3 : end], heading, level)


def _rendered(place: _Place, anchors: Mapping[str, str]) -> Markup:
    """Return a section as HTML; its links lead to sections with `anchors` or to the web."""
    tokens = [_moved(token, place, anchors) for token in _without_empty_headers(place.tokens)]
    parser = _parser()
    # Markup: the renderer escapes all text, and passes no HTML of the guide through.
    return Markup(parser.renderer.render(tokens, parser.options, {}))


def _without_empty_headers(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens, with header cells without text as plain cells."""
    empty = {i for i, t in enumerate(tokens) if t.type == "th_open" and not tokens[i + 1].content}
    for i, token in enumerate(tokens):
        is_plain = i in empty or i - 2 in empty  # opens or closes such a cell
        yield token.copy(type=token.type.replace("th", "td"), tag="td") if is_plain else token


def _moved(token: Token, place: _Place, anchors: Mapping[str, str]) -> Token:
    """Return a token of a guide as the page needs it."""
    if token.type in ("heading_open", "heading_close"):
        level = TOP + int(token.tag[1:]) - place.level
        return token.copy(tag=f"h{min(level, 6)}")
    if token.type == "th_open":
        return token.copy(attrs={**token.attrs, "scope": "col"})
    if token.type == "inline" and token.children:
        return token.copy(children=list(_inline(token.children, place.guide, anchors)))
    return token


def _inline(
    children: Sequence[Token], guide: GuideText, anchors: Mapping[str, str]
) -> Iterator[Token]:
    """Yield the tokens of a paragraph with links and pictures that work within a page."""
    opened: list[bool] = []  # whether each link that is open was kept
    for token in children:
        if token.type == "link_open":
            target = _target(str(token.attrs["href"]), guide.path, anchors)
            opened.append(target is not None)
            if target is not None:
                yield token.copy(attrs={"href": target})
        elif token.type == "link_close":
            if opened.pop():
                yield token
        elif token.type == "image":
            yield _picture(token, guide)
        else:
            yield token


def _target(href: str, path: str, anchors: Mapping[str, str]) -> str | None:
    """Return the address of a link within a page, or None if it leads to another file."""
    if href.startswith(("https://", "http://")):
        return href
    file, _, anchor = href.partition("#")
    file = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
    known = anchors.get(f"{file}#{anchor}")
    return known and f"#{known}"


def _picture(token: Token, guide: GuideText) -> Token:
    """Return a picture that contains its data, or its description if there is no such file."""
    source = str(token.attrs["src"])
    kind = _TYPES.get(posixpath.splitext(source)[1])
    if kind is None or source not in guide.pictures:
        return Token("text", "", 0, content=token.content)
    data = base64.b64encode(guide.pictures[source]).decode("ascii")
    return token.copy(attrs={**token.attrs, "src": f"data:image/{kind};base64,{data}"})
