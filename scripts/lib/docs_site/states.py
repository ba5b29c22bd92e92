"""A state diagram as a table: a browser draws mermaid's text only by a program of three megabytes."""

from __future__ import annotations

import re

from docs_site.prose import table

_DIAGRAM = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```\n", re.S | re.M)
_ARROW = re.compile(r"^ *(\S+) --> (\S+?)(?:: (.*))?$", re.M)
_OUTSIDE = "[*]"


def as_table(text: str) -> str:
    """A page whose state diagrams are tables: from which state, by what, to which."""
    return _DIAGRAM.sub(lambda diagram: _table(diagram[1]), text)


def _table(diagram: str) -> str:
    rows = [
        ["the beginning" if begin == _OUTSIDE else f"`{begin}`", by, f"`{end}`"]
        for begin, end, by in _ARROW.findall(diagram)
        if end != _OUTSIDE
    ]
    return table(["from", "by", "to"], rows)
