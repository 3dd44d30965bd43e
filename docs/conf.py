"""The documentation as a site, by `make docs`. Pages are read where they lie: their links hold in the repository."""

import importlib.metadata

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

lexers["mermaid"] = TextLexer()  # diagrams as their text: a site without scripts of others
project = "fedbayes"
author = "The fedbayes authors"
copyright = "2026, The fedbayes authors"
version = release = importlib.metadata.version("fedbayes")

extensions = ["sphinx.ext.autodoc", "sphinx.ext.mathjax", "numpydoc", "myst_nb"]
root_doc = "docs/index"
include_patterns = [
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "DESIGN.md", "SECURITY.md", "CODE_OF_CONDUCT.md",
    "docs/**.md", "notebooks/*.ipynb", "inference/*/DESIGN.md", "benchmarks/*.md",
    "benchmarks/*/LICENSE.md", "models/data/*/LICENSE.md",
]  # fmt: skip

# Notebooks are committed as they ran, and a test runs them again.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4

autodoc_typehints = "none"  # the docstrings tell
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

html_theme = "pydata_sphinx_theme"
html_title = "fedbayes"
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}
html_show_sourcelink = False
