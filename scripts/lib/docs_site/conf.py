"""What Sphinx is told: Markdown pages, and a theme that needs nothing from other hosts.

Sphinx and not MkDocs, for Material, the theme that makes MkDocs worth while, has announced its end; and Sphinx's search
needs no server.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "halfmq"
author = "halfmq"
release = metadata.version("halfmq")
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "halfmq"
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
# Of headings: the anchors that a code host gives them.
myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]
# Options and names of settings are shown as they are written: -- is no dash.
smartquotes = False
highlight_language = "none"


def setup(app: Sphinx) -> None:
    """Adds what the theme has no setting for."""
    app.connect("html-page-context", _only_the_open_branch, priority=400)  # before the theme's, which is 500


def _only_the_open_branch(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _tree: object) -> None:
    """The navigation shows the pages beside the open one, not all of every page: that takes half of the time."""
    navigation = context["toctree"]
    context["toctree"] = lambda **settings: navigation(**{**settings, "collapse": True})
