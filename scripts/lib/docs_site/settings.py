"""Reference page of the broker's settings: their three names, defaults, bounds and what they need, from its code."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import TYPE_CHECKING

import griffe

from broker.config import BOUNDS, FORMS, NEEDS, BrokerConfig
from docs_site.docstrings import sections
from docs_site.prose import cell, code, table

if TYPE_CHECKING:
    from dataclasses import Field


def pages() -> dict[str, str]:
    """The page."""
    meanings = _meanings()
    rows = [
        [
            code(field.name),
            f"`--{field.name.replace('_', '-')}`, `HALFMQ_{field.name.upper()}`",
            code(_default(field)),
            _allowed(field.name),
            cell(meanings[field.name]),
        ]
        for field in fields(BrokerConfig)
    ]
    text = (
        "# All settings\n\nMade from `broker/config.py`. [Configuration](../configuration.md) tells where they come "
        "from and how to choose them. Durations are seconds; in a file the name stands in the table `[broker]`.\n\n"
    )
    return {
        "reference/settings.md": text + table(["setting", "argument, variable", "default", "allowed", "meaning"], rows)
    }


def _default(field: Field[object]) -> str:
    default = field.default
    if isinstance(default, bool):
        return str(default).lower()
    if default is None:
        return ""
    return f"{default:g}" if isinstance(default, float) else str(default)


def _allowed(name: str) -> str:
    told = []
    if name in BOUNDS:
        least, most = BOUNDS[name]
        told.append(f"{least:,g} to {most:,}")
    if name in FORMS:
        told.append(cell(FORMS[name][1]))
    if name in NEEDS:
        told.append("with " + ", ".join(code(needed) for needed in NEEDS[name]))
    return "; ".join(told)


def _meanings() -> dict[str, str]:
    """What the docstring says of each; some share a line."""
    return {
        name: attribute.description
        for section in sections(griffe.Docstring(inspect.getdoc(BrokerConfig) or ""))
        if section.kind is griffe.DocstringSectionKind.attributes
        for attribute in section.value
        for name in attribute.name.split(",")
    }
