"""Sphinx's configuration of the documentation, which `make docs` builds.

The source folder is the repository itself: the guides of the phases and the files at its top are
pages as they are, and relative links between them work here and on a code host.
"""

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

write_pages(HERE.parent)
