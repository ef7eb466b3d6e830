"""Links of a release: add the pages that they lead to, and unlink what learners don't get."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from gradsync.course.release.notebooks import notebook_text

# A local link of Markdown, or a picture: its text, and the path of a file. `items[0](x)` is none.
LINK = re.compile(r"!?\[([^\[\]]*)\]\(([\w./-]+\.\w+)(?:#[^)\s]*)?\)")
PAGES = (".md", ".ipynb")


def with_linked(
    root: Path, files: Mapping[str, bytes], folders: Collection[str]
) -> dict[str, bytes]:
    """Return the files, and the pages and pictures in `folders` to which they lead.

    Args:
        root: the course's folder.
        files: files of a release, by path.
        folders: the top folders from which files may be added; Python files never are.
    """
    found = dict(files)
    waiting = list(found)
    while waiting:
        page = waiting.pop()
        links = LINK.finditer(found[page].decode()) if page.endswith(PAGES) else ()
        for target in (_target(page, link) for link in links):
            path = root / target
            allowed = target.split("/")[0] in folders and path.suffix != ".py"
            if allowed and target not in found and path.is_file():
                found[target] = path.read_bytes()
                waiting.append(target)
    return found


def without_dead_links(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files, in which links to files that are not among them are plain text."""
    return {path: _unlinked(path, content, files) for path, content in files.items()}


def _target(page: str, link: re.Match[str]) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link[2]))


def _unlinked(page: str, content: bytes, files: Collection[str]) -> bytes:
    def kept(link: re.Match[str]) -> str:
        return link[0] if _target(page, link) in files else link[1]

    if page.endswith(".md"):
        return LINK.sub(kept, content.decode()).encode()
    if page.endswith(".ipynb"):
        notebook = json.loads(content)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                text = LINK.sub(kept, "".join(cell["source"]))
                cell["source"] = text.splitlines(keepends=True)
        return notebook_text(notebook).encode()
    return content
