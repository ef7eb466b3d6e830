"""A page or a part of a page, read by Python's HTML parser."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}
UNSEEN = {"style", "script"}


class ParsedHtml(HTMLParser):
    """The tags, attributes and words of some HTML; fails if a tag is not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.headings: list[int] = []  # their levels
        self._open: list[str] = []
        self._joined = False
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self._joined = tag == "wbr"
        if tag not in VOID:
            self._open.append(tag)
        if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self.headings.append(int(tag[1]))

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if UNSEEN & set(self._open):
            return
        if self._joined and self.words:
            data = self.words.pop() + data  # a word that may be divided here
        self.words.append(data)
        self._joined = False

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def values_of(self, name: str) -> list[str]:
        """Return the values of all attributes with this name."""
        return [value or "" for attribute, value in self.attributes if attribute == name]
