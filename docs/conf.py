"""Sphinx's configuration of the documentation, which `make docs` builds.

The source folder is the repository itself: the guides of the phases and the files at its top are
pages as they are, and relative links between them work here and on a code host.
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from generate import write_pages  # noqa: E402

import gradsync  # noqa: E402

project = "gradsync"
author = "gradsync contributors"
copyright = "2026, gradsync contributors; texts and pictures: CC BY 4.0, code: MIT"
release = gradsync.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "phase*/GUIDELINES.md",
    "notebooks/[0-9]*.ipynb",
    "cluster/README.md",
    "gradsync/review/pages/*.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
exclude_patterns = ["docs/_*/**", "notebooks/.ipynb_checkpoints/**"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # links to headings, as code hosts make them
nb_execution_mode = "off"  # `make notebook-outputs` has run them
nb_mime_priority_overrides = [("html", "text/html", 1)]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
default_role = "code"  # `name` in a docstring

html_theme = "furo"
pygments_dark_style = "github-dark"  # others underline modules, as if they were links
html_title = f"gradsync {release}"
html_extra_path = ["_extra"]  # index.html at the top leads to docs/index.html
suppress_warnings = ["misc.highlighting_failure", "myst.header"]  # csv has no lexer; H1, then H3
copybutton_exclude = ".linenos, .gp, .go"
linkcheck_timeout = 20

SITE = re.compile(r"https://gradsync\.github\.io/gradsync/(docs/[\w/-]+)\.html")
LEARN = (
    "install learning made/exercises ../phase1/GUIDELINES ../phase2/GUIDELINES ../phase3/GUIDELINES"
)
CONTENTS = {  # of a page: captions and the pages below them; a code host would show them as code
    "docs/index": {
        "Learn": f"{LEARN} notebooks debugging launching ../cluster/README speed scaling"
        " made/codes/index",
        "Teach": "teaching classes grading nbgrader another-course ../SECURITY",
        "Test your code": "engine assertions made/reference/index",
        "Review a script": "review ../gradsync/review/pages/README",
        "More": "made/commands/index figures ../CHANGELOG ../CONTRIBUTING",
    },
    "docs/notebooks": {"All lessons": "../notebooks/[0-9]*"},
    "gradsync/review/pages/README": {"Rules": "DDP*"},
}


def complete(_, page: str, source: list[str]) -> None:
    """Add a page's contents, and let Sphinx check links to pages that only this site has."""
    text = SITE.sub(r"/\1.md", source[0])
    hidden = "" if page == "docs/notebooks" else ":hidden:\n"
    for caption, pages in CONTENTS.get(page, {}).items():
        entries = "\n".join(pages.split())
        text += f"\n```{{toctree}}\n:glob:\n{hidden}:caption: {caption}\n\n{entries}\n```\n"
    source[0] = text


def setup(app) -> None:
    """Connect the function above."""
    write_pages(HERE.parent)
    app.connect("source-read", complete)
