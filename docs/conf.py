"""Settings of the site that scripts/docs builds from the documents."""

from __future__ import annotations

import sys
from pathlib import Path

from nartk.version import __version__ as release

sys.path.append(str(Path(__file__).parent))
from pages import write_pages

project = "nartk"
author = copyright = "The nartk project"
version = release
root_doc = "docs/index"
# The documents name each other, and scripts and tables, by their paths in the repository.
include_patterns = [
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**", "data/corpora/*.md"),
    *("recipes/*/README.md", "recipes/*/results/*.md", "tests/oracles/README.md", "tests/gpu/RESULTS.md"),
]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
smartquotes = False  # options begin with two hyphens
html_theme = "furo"
html_title = f"nartk {release}"

write_pages(Path(__file__).parent / "generated")
