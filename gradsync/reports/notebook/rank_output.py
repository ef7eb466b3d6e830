"""Show the output of the ranks of a notebook's cell, rank by rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gradsync.reports.templating import template
from gradsync.reports.text import printable
from gradsync.text import ranks_text


@dataclass(frozen=True, slots=True)
class Block:
    """The output of some ranks, all of which printed and displayed the same."""

    ranks: tuple[int, ...]
    text: str
    shown: tuple[Mapping[str, str], ...]  # of each displayed value: MIME type -> text

    @property
    def label(self) -> str:
        """The name of the block's ranks."""
        return ranks_text(self.ranks)


def fold(
    texts: Sequence[str], shown: Sequence[Sequence[Mapping[str, str]]], ranks: Iterable[int]
) -> list[Block]:
    """Return the output of these ranks, with one block for ranks with the same output.

    Args:
        texts: the text that each rank printed.
        shown: the values that each rank displayed, by MIME type.
        ranks: the ranks that ran the cell.
    """
    groups: dict[object, list[int]] = {}
    for rank in ranks:
        if texts[rank] or shown[rank]:
            forms = tuple(tuple(sorted(bundle.items())) for bundle in shown[rank])
            groups.setdefault((texts[rank], forms), []).append(rank)
    return [
        Block(tuple(group), texts[group[0]], tuple(shown[group[0]])) for group in groups.values()
    ]


def plain(blocks: Iterable[Block]) -> str:
    """Return the blocks as text for a terminal, each line after the names of its ranks."""
    lines = []
    for block in blocks:
        texts = [block.text, *(forms.get("text/plain", "") for forms in block.shown)]
        said = "\n".join(printable(text).rstrip("\n") for text in texts if text)
        lines += [f"[{block.label}] {line}" for line in said.split("\n")]
    return "\n".join(lines)


def html(blocks: Iterable[Block]) -> str:
    """Return the blocks as HTML for a notebook, in the ranks' colours.

    The HTML of values is not escaped: it comes from the notebook's user.
    """
    return _PAGE.render(blocks_of_ranks=list(blocks))


_PAGE = template("ranks.html.j2")
